"""What is streamed is what is decoded at once, bit for bit, however it is cut up and whoever else is served."""

from __future__ import annotations

import random

import pytest
import torch

from generators.orpheus.frames import Frame
from generators.orpheus.snac_config import SnacConfig
from generators.orpheus.walks import Strides
from tests.generators.orpheus.spelled_speech import AUDIO_BASE, SMALL, ids_of, random_frames, sounds_of, speech_model
from tests.models.walk_driver import Request, WalkDriver, drive

SOUNDS = sounds_of(SMALL)
STRIDES = [Strides(first, most) for most in (1, 2, 4, 8) for first in (1, 2, 4, 8) if first <= most]
STOP = 3


def spelled(frames: list[Frame], *more: int, config: SnacConfig = SMALL) -> torch.Tensor:
    size = config.codebook_size
    ids = [AUDIO_BASE + slot * size + code for frame in frames for slot, code in enumerate(frame)]
    return torch.tensor([*ids, *more])


def said(driver: WalkDriver, ids: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
    return driver.run_one("speech", {"text": ids}, seed=seed).emitted["audio"]


@pytest.mark.parametrize("strides", STRIDES, ids=lambda strides: f"{strides.first}-{strides.most}")
def test_streamed_is_offline_for_every_stride_and_length(strides: Strides) -> None:
    driver = drive(speech_model(SMALL, strides))
    for num_frames in (1, 2, 5, 8, 13):
        frames = random_frames(num_frames, num_frames)
        chunks = said(driver, spelled(frames, STOP), seed=num_frames)
        whole = SOUNDS.whole(frames, seed=num_frames)
        assert len(whole) == num_frames * SMALL.frame_samples
        assert 0.05 < whole.abs().max() < 0.95
        assert torch.equal(torch.cat(chunks), whole)


def test_at_the_published_rates_too() -> None:
    config = SnacConfig(encoder_dim=1, decoder_dim=16, codebook_size=16)
    driver, sounds = drive(speech_model(config, Strides())), sounds_of(config)
    frames = random_frames(7, config=config)
    chunks = said(driver, spelled(frames, STOP, config=config))
    assert torch.equal(torch.cat(chunks), sounds.whole(frames))
    assert [len(chunk) for chunk in chunks] == [3 * 2048 - 4757, 2048, 2 * 2048, 7 * 2048 - 6 * 2048 + 4757]


@pytest.mark.parametrize("end", [(), (STOP,)])
@pytest.mark.parametrize("num_codes", range(SMALL.num_slots))
def test_any_number_of_ids_gives_all_its_whole_frames(num_codes: int, end: tuple[int, ...]) -> None:
    driver, frames = drive(speech_model(SMALL, Strides())), random_frames(5)
    for num_frames in (0, 1, 4):
        ids = spelled(frames)[: num_frames * SMALL.num_slots + num_codes]
        ids = torch.cat((ids, torch.tensor(end, dtype=torch.int64)))
        if len(ids):
            assert torch.equal(torch.cat(said(driver, ids)), SOUNDS.whole(frames[:num_frames]))


def test_alone_is_as_in_company_and_in_parts() -> None:
    driver = drive(speech_model(SMALL, Strides(1, 4)))
    texts = [spelled(random_frames(count, count), STOP) for count in (9, 1, 4, 6)]
    alone = [said(driver, ids, seed) for seed, ids in enumerate(texts)]
    driver.share_of = lambda num_left: 1
    for stagger in (0, 3):
        together = driver.run(
            *(Request("speech", {"text": ids}, {"seed": seed}) for seed, ids in enumerate(texts)), stagger=stagger
        )
        for one, served in zip(alone, together, strict=True):
            assert all(map(torch.equal, one, served.emitted["audio"]))


def test_seeds_differ_and_reproduce() -> None:
    driver, ids = drive(speech_model(SMALL, Strides())), spelled(random_frames(4))
    first, again, other = (torch.cat(said(driver, ids, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).all()


def test_what_is_no_audio_or_of_another_slot_changes_nothing() -> None:
    driver, frames, draw = drive(speech_model(SMALL, Strides())), random_frames(6), random.Random(4)
    ids = []
    for index, one in enumerate(spelled(frames).tolist()):
        wrong_slots = [slot for slot in range(SMALL.num_slots) if slot != index % SMALL.num_slots]
        strangers = [
            0,
            AUDIO_BASE - 1,
            ids_of(SMALL).end,
            10**9,
            AUDIO_BASE + SMALL.codebook_size * draw.choice(wrong_slots),
        ]
        ids += [*draw.sample(strangers, draw.randrange(3)), one]
    assert len(ids) > 6 * SMALL.num_slots
    assert torch.equal(torch.cat(said(driver, torch.tensor(ids))), SOUNDS.whole(frames))
