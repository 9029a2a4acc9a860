"""Dimensions of a SNAC codec, from the `config.json` that is published beside its weights. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, nearest

KERNEL = 7
"""Of every convolution that looks around, in positions of its own rate."""
DILATIONS = (1, 3, 9)
"""Of the residual units of each block."""


@dataclass(frozen=True)
class SnacConfig:
    """Named and by default as published for 24 kHz.

    A *frame* is what one code of the coarsest codebook stands for: `vq_strides[0]` latents, `frame_samples` samples.
    Codebook `c` has `vq_strides[0] / vq_strides[c]` codes for it, so a frame is `num_slots` codes in all.
    """

    sampling_rate: int = 24_000
    encoder_dim: int = 48
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    latent_dim: int | None = None
    decoder_dim: int = 1024
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    attn_window_size: int | None = None
    codebook_size: int = 4096
    codebook_dim: int = 8
    vq_strides: tuple[int, ...] = (4, 2, 1)
    noise: bool = True
    depthwise: bool = True

    @property
    def latent_size(self) -> int:
        return self.latent_dim or self.encoder_dim * 2 ** len(self.encoder_rates)

    @property
    def hop_samples(self) -> int:
        """Samples of one latent."""
        return math.prod(self.decoder_rates)

    @property
    def frame_samples(self) -> int:
        return self.hop_samples * self.vq_strides[0]

    @property
    def num_slots(self) -> int:
        return len(self.slots)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The codebook of each slot of a frame, in the order in which a language model writes them: every code is
        followed by what refines it, 0 1 2 2 1 2 2 for strides 4 2 1."""
        return tuple(self._refined(0))

    @cached_property
    def delay_samples(self) -> int:
        """So far behind the end of the newest frame the sound is decided: what all convolutions look ahead."""
        delay = KERNEL // 2
        for rate in self.decoder_rates:
            delay = delay * rate + math.ceil(rate / 2) + sum(dilation * (KERNEL // 2) for dilation in DILATIONS)
        return delay + KERNEL // 2

    @property
    def num_frames_ahead(self) -> int:
        """How many frames, at least, the sound of a whole frame waits for beyond its own."""
        return math.ceil(self.delay_samples / self.frame_samples)

    def width(self, block: int) -> int:
        """Channels in front of block `block` of the decoder; of the last one plus one, behind it."""
        return self.decoder_dim // 2**block

    def _refined(self, codebook: int) -> list[int]:
        if codebook + 1 == len(self.vq_strides):
            return [codebook]
        ratio = self.vq_strides[codebook] // self.vq_strides[codebook + 1]
        return [codebook, *(self._refined(codebook + 1) * ratio)]


def read_snac_config(path: Path) -> SnacConfig:
    """Raises: ConfigError: no such file, an unknown key, a value that is none, or a codec of another architecture."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not the readable config.json of a SNAC codec: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not an object of names and values")
    known = [field.name for field in fields(SnacConfig)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{path} has an unknown key {key!r}, {nearest(key, known)}")
    checked = {key: _checked(key, value, path) for key, value in values.items()}
    config = SnacConfig(**checked)
    _check_architecture(config, values, path)
    return config


def _checked(key: str, value: Any, path: Path) -> Any:
    if key in ("attn_window_size", "latent_dim") and value is None:
        return None
    if key in ("noise", "depthwise"):
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{path}: {key!r} is {value!r}, expected true or false")
    if key in ("encoder_rates", "decoder_rates", "vq_strides"):
        if isinstance(value, list) and value and all(_is_count(one) for one in value):
            return tuple(value)
        raise ConfigError(f"{path}: {key!r} is {value!r}, expected a list of whole numbers of at least 1")
    if _is_count(value):
        return value
    raise ConfigError(f"{path}: {key!r} is {value!r}, expected a whole number of at least 1")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_architecture(config: SnacConfig, values: Mapping[str, Any], path: Path) -> None:
    if values.get("attn_window_size", 32) is not None:
        raise ConfigError(
            f"{path} has attn_window_size {values.get('attn_window_size', 32)}, expected null: attention is not served"
        )
    if not config.depthwise:
        raise ConfigError(f"{path} has depthwise false, expected true, as in the published 24 kHz codec")
    if math.prod(config.encoder_rates) != config.hop_samples:
        raise ConfigError(
            f"{path}: the encoder_rates and the decoder_rates have different products, expected equal ones"
        )
    strides = config.vq_strides
    if strides[-1] != 1 or any(coarse % fine for coarse, fine in pairwise(strides)):
        raise ConfigError(
            f"{path} has vq_strides {list(strides)}, expected each to divide the one before and the last to be 1"
        )
    if config.decoder_dim % 2 ** len(config.decoder_rates):
        raise ConfigError(
            f"{path} has decoder_dim {config.decoder_dim}, expected a multiple of {2 ** len(config.decoder_rates)}, "
            f"as each of the {len(config.decoder_rates)} decoder_rates halves it"
        )
