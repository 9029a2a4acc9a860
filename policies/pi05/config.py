"""Dimensions of every member of the pi0 family: pi0, whose expert takes the robot's state as a token and the flow time
beside the actions, and pi0.5, which reads the state as text and takes the time through its norms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, NotFound, nearest
from mstar_rt.model.dimensions import check_positive, checked_section

KINDS = ("pi05", "pi0")


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A SigLIP tower over square images."""

    dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    image_size: int = 224
    patch_size: int = 14

    def __post_init__(self) -> None:
        check_positive(self)
        if self.dim % self.num_heads:
            raise ConfigError(f"vision.dim {self.dim} is no multiple of vision.num_heads {self.num_heads}")
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"vision.image_size {self.image_size} is no multiple of vision.patch_size {self.patch_size}"
            )

    @property
    def num_patches(self) -> int:
        """Tokens of one image."""
        return (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """A Gemma decoder, less its heads, which the language model and the expert share."""

    width: int
    mlp_dim: int

    def __post_init__(self) -> None:
        check_positive(self)


@dataclasses.dataclass(frozen=True)
class Pi05Config:
    """One member of the family.

    The language model reads images and text once, and the expert turns noise into actions `[action_horizon,
    action_dim]` while it attends to what the language model stored, layer by layer: so both have `depth` layers and
    heads of one shape. `action_dim` is also the size of the state that pi0 takes. Periods are those of the flow time's
    sines, in units of the whole flow.
    """

    name: str
    vision: VisionConfig
    language: DecoderConfig
    expert: DecoderConfig
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    action_dim: int
    action_horizon: int
    kind: str = "pi05"
    min_period: float = 4e-3
    max_period: float = 4.0

    def __post_init__(self) -> None:
        check_positive(self)
        if self.kind not in KINDS:
            raise ConfigError(f"kind is {self.kind!r} in {self.name!r}, {nearest(self.kind, KINDS)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        for part, size in (("head_dim", self.head_dim), ("expert.width", self.expert.width)):
            if size % 2:
                raise ConfigError(f"{part} must be even in {self.name!r}, got {size}")
        if self.expert.width < 4:
            raise ConfigError(f"expert.width must be at least 4 in {self.name!r}, got {self.expert.width}")
        if not 0 < self.min_period < self.max_period:
            raise ConfigError(
                f"periods must satisfy 0 < min_period < max_period in {self.name!r}, "
                f"got {self.min_period} and {self.max_period}"
            )

    @property
    def takes_state(self) -> bool:
        """Whether the state is a token of the expert's (pi0) rather than text (pi0.5)."""
        return self.kind == "pi0"

    def to_json(self, path: Path) -> None:
        """Write every field, so that the file stays true when a default here changes."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: Path) -> Pi05Config:
        """Raises: ConfigError: the file is missing, is not JSON, or has an unknown, missing or impossible value."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the model's dimensions at {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from error
        return cls.from_dict(values, source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> Pi05Config:
        """Parse nested dictionaries as `to_json` writes them; unknown keys fail.

        With `preset`, the name of a published member, all other keys are differences to it.
        """
        if isinstance(values, Mapping) and "preset" in values:
            base = dataclasses.asdict(preset(str(values["preset"])))
            values = {**base, **{key: value for key, value in values.items() if key != "preset"}}
        checked = checked_section(cls, values, source)
        parts: dict[str, type[Any]] = {"vision": VisionConfig, "language": DecoderConfig, "expert": DecoderConfig}
        for part, kind in parts.items():
            checked[part] = kind(**checked_section(kind, checked[part], f"{source}: {part}"))
        return cls(**checked)


def preset(name: str) -> Pi05Config:
    """The dimensions of a published member."""
    if name not in PRESETS:
        raise NotFound(f"no pi0 preset is called {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]


SO400M = VisionConfig(dim=1152, depth=27, num_heads=16, mlp_dim=4304)
GEMMA_2B = DecoderConfig(width=2048, mlp_dim=16384)
GEMMA_300M = DecoderConfig(width=1024, mlp_dim=4096)


def _published(name: str, kind: str, action_horizon: int) -> Pi05Config:
    return Pi05Config(
        name, SO400M, GEMMA_2B, GEMMA_300M, depth=18, num_heads=8, num_kv_heads=1, head_dim=256, vocab_size=257152,
        action_dim=32, action_horizon=action_horizon, kind=kind,
    )  # fmt: skip


PRESETS: dict[str, Pi05Config] = {
    member.name: member
    for member in (
        _published("pi05", "pi05", action_horizon=50),
        _published("pi05_droid", "pi05", action_horizon=15),
        _published("pi05_libero", "pi05", action_horizon=10),
        _published("pi0", "pi0", action_horizon=50),
    )
}
