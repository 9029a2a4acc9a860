"""The whole voice: a text to its sound, by way of a tiny language model that babbles whole frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from orpheus_tiny import AUDIO_BASE, NUM_WORDS, SNAC, STOP, write_orpheus
from walk_driver import Request, Served, WalkDriver, drive

from generators.llama.tokenizer import LlamaTokenizer
from generators.orpheus.checkpoint import load_snac
from generators.orpheus.config import Vocabulary, read_config
from generators.orpheus.model import declare
from generators.orpheus.prompt_nodes import Prompt
from generators.orpheus.sound import Sounds
from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import Reason
from mstar_rt.model.conversation import write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_orpheus(tmp_path_factory.mktemp("orpheus"))


@pytest.fixture(scope="module")
def driver(folder: Path) -> WalkDriver:
    return drive(declare("voice", str(folder), {}))


def say(driver: WalkDriver, text: str, **options: Any) -> Served:
    driver.seen.clear()
    return driver.run_one("speech", text_of(text), **options)


def text_of(text: str) -> dict[str, torch.Tensor]:
    return {"text": torch.from_numpy(write_text(text))}


def sound(served: Served) -> torch.Tensor:
    return torch.cat(served.emitted["audio"])


def counts(served: Served) -> list[int]:
    return [int(served.emitted[name][-1]) for name in ("reason", "num_input_tokens", "num_output_tokens")]


def test_the_sound_is_that_of_all_its_tokens_at_once(driver: WalkDriver, folder: Path) -> None:
    sounds, ids = Sounds(load_snac(folder / "snac", "cpu")), read_config(folder).audio_ids
    for seed in range(4):
        served = say(driver, "Hello world", seed=seed, max_tokens=90)
        drawn = [int(outputs["token"]) for _, outputs in driver.seen["decode"]]
        frames, _ = ids.take([], drawn)
        reason, num_read, num_written = counts(served)
        assert num_written == len(drawn)
        assert num_read == len(driver.seen["prompt"][0][1]["ids"])
        assert reason == (Reason.END if drawn[-1] == STOP else Reason.MAX_TOKENS)
        assert torch.equal(sound(served), sounds.whole(frames, seed))
    assert driver.num_pages_held == 0


def test_it_babbles(driver: WalkDriver) -> None:
    """What the other tests rest on: frames follow one another and end with a stop, sooner or later."""
    served = [say(driver, "Hello", seed=seed, max_tokens=250) for seed in range(3)]
    assert {counts(one)[0] for one in served} >= {Reason.END}
    assert all(0.05 < sound(one).abs().max() < 0.95 for one in served)


def test_equal_alone_and_in_any_company(driver: WalkDriver) -> None:
    requests = [
        Request("speech", text_of(text), {"seed": seed, "voice": voice, "max_tokens": tokens, "ignore_end": True})
        for seed, (text, voice, tokens) in enumerate(
            (("Hello", "ann", 80), ("One two three", "bob", 30), ("a", "ann", 55))
        )
    ]
    alone = [sound(driver.run(request)[0]) for request in requests]
    for stagger in (0, 5):
        together = driver.run(*requests, stagger=stagger)
        assert all(torch.equal(one, sound(served)) for one, served in zip(alone, together, strict=True))
    assert not torch.equal(alone[0][:128], alone[2][:128])


def test_options_change_what_is_said(driver: WalkDriver) -> None:
    def first(**options: Any) -> bytes:
        return sound(say(driver, "Hello", max_tokens=40, ignore_end=True, **options)).numpy().tobytes()

    usual = first(seed=1)
    assert first(seed=1) == usual
    others = [
        {"seed": 2},
        {"voice": "bob"},
        {"temperature": 0.0},
        {"top_p": 0.1},
        {"top_k": 1},
        {"repetition_penalty": 1.0},
    ]
    for options in others:
        assert first(**{"seed": 1, **options}) != usual, options


def test_the_first_sound_comes_early(folder: Path) -> None:
    """With the first frames its sound depends on, before the language model has gone on by a chunk more."""
    driver = drive(declare("voice", str(folder), {"first_chunk_frames": 2, "max_chunk_frames": 4}))
    served = say(driver, "Hello", ignore_end=True, max_tokens=7 * 20)
    ahead = read_config(folder).snac.num_frames_ahead
    chunks = [len(inputs["ids"].new) for inputs, _ in driver.seen["codec"]]
    assert chunks[:4] == [7 * (1 + ahead), 7 * 2, 7 * 4, 7 * 4]
    assert len(served.emitted["audio"][0]) > 0


def test_time_that_is_up_ends_with_all_whole_frames(driver: WalkDriver, folder: Path) -> None:
    driver.seen.clear()
    driver.step_ns = 1000
    request = Request(
        "speech", text_of("Hello"), {"ignore_end": True, "max_tokens": 200, "seed": 4}, driver.now_ns + 60_000
    )
    served = driver.run(request)[0]
    driver.step_ns = 0
    drawn = [int(outputs["token"]) for _, outputs in driver.seen["decode"]]
    frames, _ = read_config(folder).audio_ids.take([], drawn)
    assert counts(served)[0] == Reason.DEADLINE
    assert 20 < len(drawn) < 60
    assert torch.equal(sound(served), Sounds(load_snac(folder / "snac", "cpu")).whole(frames, seed=4))


def test_a_warm_up_is_answered(driver: WalkDriver) -> None:
    served = driver.run_one("speech", {"text": torch.zeros(1, dtype=torch.uint8)}, max_tokens=32)
    assert counts(served)[0] in (Reason.END, Reason.MAX_TOKENS)


def test_the_published_prompt(folder: Path) -> None:
    tokenizer = LlamaTokenizer(folder, NUM_WORDS)
    ids = Prompt(tokenizer, Vocabulary(), 999).ids("Hi", "tara")
    assert ids[:2] == [128259, 0]  # the tokenizer's own beginning of a text comes second
    assert tokenizer.decode(ids[2:-4]) == "tara: Hi"
    assert ids[-4:] == [128009, 128260, 128261, 128257]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (" \n", {}, "no word"),
        ("Hi <|end|> there", {}, "does not read as text"),
        ("word " * 300, {}, "together over the 512"),
        ("Hi", {"max_tokens": 511}, "together over the 512"),
        ("Hi", {"voice": "tara"}, "voice"),
        ("Hi", {"speed": 1.0}, "speed"),
    ],
)
def test_what_is_not_said(driver: WalkDriver, text: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        say(driver, text, **options)


def test_what_is_not_utf8(driver: WalkDriver) -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        driver.run_one("speech", {"text": torch.from_numpy(np.array([0xFF], np.uint8))})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"first_chunk_frames": 0}, "at least 1"),
        ({"first_chunk_frames": 4, "max_chunk_frames": 3}, "at least 4"),
        ({"max_chunk_frame": 3}, "did you mean"),
        ({"codec": 3}, "expected a folder"),
        ({"codec": "nowhere"}, "nowhere"),
        ({"max_sequence_tokens": 41}, "is 41, but the shortest request of task 'speech' takes 42: set it to"),
    ],
)
def test_options_that_are_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        declare("voice", str(folder), options)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"audio_base": AUDIO_BASE + 1}, "the vocabulary has"),
        ({"stop_id": AUDIO_BASE}, "is audio or not in the vocabulary"),
        ({"prompt_end": [10**6]}, "is audio or not in the vocabulary"),
        ({"stop": 1}, "did you mean"),
        ({"voices": "ann"}, "a list of names"),
        ({"voices": ["ann"], "default_voice": "an"}, "did you mean 'ann'"),
    ],
)
def test_blocks_that_are_refused(folder: Path, block: dict[str, Any], said: str, tmp_path: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"orpheus": values["orpheus"] | block}))
    with pytest.raises(ConfigError, match=said):
        read_config(tmp_path, str(folder / "snac"))


def test_a_model_without_voices(folder: Path, tmp_path: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"orpheus": values["orpheus"] | {"voices": []}}))
    model = declare("voice", str(tmp_path), {"codec": str(folder / "snac")})
    assert "voice" not in [param.name for param in model.task("speech").params]
    assert model.generation is not None
    assert model.generation.speech is not None
    assert (model.generation.speech.voices, model.generation.speech.sample_rate_hz) == ((), SNAC["sampling_rate"])
