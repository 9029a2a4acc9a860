"""The codec against the `snac` package, whose noise is replaced by ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from generators.orpheus.checkpoint import load_snac
from generators.orpheus.noise import Noise
from generators.orpheus.snac_config import SnacConfig
from generators.orpheus.sound import Sounds
from mstar_rt.errors import CheckpointError, ConfigError
from tests.generators.orpheus.spelled_speech import random_frames

snac = pytest.importorskip("snac")
PUBLISHED = {
    "sampling_rate": 24000, "encoder_dim": 48, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 1024,
    "decoder_rates": [8, 8, 4, 2], "attn_window_size": None, "codebook_size": 4096, "codebook_dim": 8,
    "vq_strides": [4, 2, 1], "noise": True, "depthwise": True,
}  # fmt: skip
TINY = PUBLISHED | {"encoder_dim": 1, "decoder_dim": 16, "codebook_size": 16}
CONFIGS = {
    "tiny": TINY,
    "odd rates": TINY
    | {"encoder_rates": [3, 5, 2], "decoder_rates": [2, 5, 3], "decoder_dim": 24, "vq_strides": [2, 1]},
    "without noise": TINY | {"noise": False, "vq_strides": [3, 1], "sampling_rate": 8000},
    "full size": PUBLISHED | {"encoder_dim": 1, "latent_dim": 768},  # decoding does not run the encoder
}


def published(config: dict[str, Any], folder: Path) -> Any:
    """The package's codec with random weights, written as published."""
    torch.manual_seed(1)
    model = snac.SNAC(**config).eval()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


@pytest.fixture
def use_noise(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call with (noise, frames): the package's noise layers, one after the other, draw from ours."""

    def use(noise: Noise, num_frames: int) -> None:
        layers: Iterator[int] = iter(range(99))

        def randn(shape: tuple[int, int, int], **_: Any) -> torch.Tensor:
            return noise.span(next(layers), 0, shape[2], shape[2] // num_frames).view(shape)

        standin = type("Torch", (), {"randn": staticmethod(randn)})
        monkeypatch.setattr("snac.layers.torch", standin)

    return use


@pytest.mark.parametrize("name", CONFIGS)
def test_sounds_like_the_package(name: str, tmp_path: Path, use_noise: Any) -> None:
    model = published(CONFIGS[name], tmp_path)
    sounds = Sounds(load_snac(tmp_path, "cpu"))
    num_frames = 2 if name == "full size" else 5
    frames = random_frames(num_frames, config=sounds.config)
    use_noise(Noise(seed=3), num_frames)
    with torch.no_grad():
        expected = model.decode(by_codebook(sounds.config, frames))[0, 0]
    sound = sounds.whole(frames, seed=3)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(sound, expected, rtol=0, atol=2e-6)


def by_codebook(config: SnacConfig, frames: list[tuple[int, ...]]) -> list[torch.Tensor]:
    return [
        torch.tensor(
            [[code for frame in frames for code, of in zip(frame, config.slots, strict=True) if of == codebook]]
        )
        for codebook in range(len(config.vq_strides))
    ]


def test_the_slots_of_a_frame() -> None:
    config = SnacConfig()
    assert config.slots == (0, 1, 2, 2, 1, 2, 2)
    assert (config.frame_samples, config.num_slots, config.delay_samples) == (2048, 7, 4757)


def test_how_far_a_code_is_heard(tmp_path: Path) -> None:
    """The last code of a frame is heard from `delay_samples` before its own latent on, and not before that."""
    model = published(TINY | {"noise": False}, tmp_path)
    sounds = Sounds(load_snac(tmp_path, "cpu"))
    frames = random_frames(8, config=sounds.config)
    slot = sounds.config.num_slots - 1
    other = [frame if index != 6 else (*frame[:slot], (frame[slot] + 1) % 16) for index, frame in enumerate(frames)]
    with torch.no_grad():
        heard = [model.decode(by_codebook(sounds.config, some))[0, 0] for some in (frames, other)]
    differs = (heard[0] != heard[1]).nonzero().flatten()
    latent_start = 6 * 2048 + 3 * 512
    assert latent_start - 4757 <= int(differs[0]) < latent_start - 4500


REFUSED = [
    ({"attn_window_size": 32}, "attention is not served"),
    ({"depthwise": False}, "expected true"),
    ({"decoder_rates": [8, 8, 4]}, "different products"),
    ({"vq_strides": [4, 3, 1]}, "divide the one before"),
    ({"decoder_dim": 10}, "multiple of 16"),
    ({"codebook_size": "many"}, "whole number"),
    ({"decoder_rate": [8]}, "did you mean"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_other_codecs_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY | change))
    with pytest.raises(ConfigError, match=said):
        load_snac(tmp_path, "cpu")


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    state = published(TINY, tmp_path).state_dict()
    for key, said in (
        ("decoder.model.1.parametrizations.weight.original0", "lacks"),
        ("decoder.model.2.block.0.alpha", "lacks"),
        ("quantizer.quantizers.1.codebook.weight", "lacks"),
        ("decoder.model.9.bias", "unknown keys"),
    ):
        changed = dict(state)
        if changed.pop(key, None) is None:
            changed[key] = torch.zeros(1)
        torch.save(changed, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=said):
            load_snac(tmp_path, "cpu")


def test_a_file_that_is_no_dictionary_of_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for content, said in (([torch.zeros(1)], "dictionary of tensors"), ({"decoder": 3}, "must be a tensor")):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=said):
            load_snac(tmp_path, "cpu")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'ls'\ntR.")
    with pytest.raises(CheckpointError, match="not a torch weights file"):
        load_snac(tmp_path, "cpu")
