"""Dimensions of every member of the V-JEPA 2-AC family, as they stand beside the weights in `config.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, NotFound, nearest
from mstar_rt.model.dimensions import check_positive, checked_section
from world_models.planning.options import PlannerDefaults

PUBLISHED_PLANNER = PlannerDefaults()
MIN_HEAD_DIM = 12
"""Below this a head has fewer than two frequencies per axis, which the published code cannot run."""


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """A video vision transformer: patches of `tubelet_size` frames x `patch_size` x `patch_size` pixels."""

    dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    image_size: int = 256
    patch_size: int = 16
    tubelet_size: int = 2
    num_channels: int = 3

    def __post_init__(self) -> None:
        check_positive(self)
        check_heads("encoder", self.dim, self.num_heads)
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"encoder.image_size {self.image_size} is not a multiple of encoder.patch_size {self.patch_size}; "
                "choose a multiple"
            )

    @property
    def grid_size(self) -> int:
        """Patches along one side of a square image."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Tokens of one frame (or one tubelet)."""
        return self.grid_size**2

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def patch_values(self) -> int:
        """Numbers in one patch of one frame."""
        return self.num_channels * self.patch_size**2


@dataclasses.dataclass(frozen=True)
class PredictorConfig:
    """Predicts the next frame's latents from those so far, one action and one state per frame.

    `max_frames` bounds how many frames may stand in one context, so the longest rollout from one context frame is
    `max_frames` steps. `trained_frames` says how many positions training saw: beyond it is extrapolation.
    """

    latent_dim: int
    dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    grid_rows: int = 16
    grid_columns: int = 16
    action_dim: int = 7
    state_dim: int = 7
    extrinsics_dim: int = 6
    use_extrinsics: bool = False
    max_frames: int = 32
    trained_frames: int = 7

    def __post_init__(self) -> None:
        check_positive(self)
        check_heads("predictor", self.dim, self.num_heads)

    @property
    def num_patches(self) -> int:
        return self.grid_rows * self.grid_columns

    @property
    def num_condition_tokens(self) -> int:
        """Action and state, and the camera's extrinsics where they are used."""
        return 3 if self.use_extrinsics else 2

    @property
    def frame_tokens(self) -> int:
        """Tokens that one frame puts into the context (258 for the released model)."""
        return self.num_condition_tokens + self.num_patches

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


@dataclasses.dataclass(frozen=True)
class VJepa2Config:
    """One member of the family, and what its plans default to."""

    name: str
    encoder: EncoderConfig
    predictor: PredictorConfig
    frames_per_second: float = 4.0
    planner: PlannerDefaults = PUBLISHED_PLANNER

    def __post_init__(self) -> None:
        encoder, predictor = self.encoder, self.predictor
        if predictor.latent_dim != encoder.dim:
            raise ConfigError(
                f"predictor.latent_dim {predictor.latent_dim} must equal encoder.dim {encoder.dim} in {self.name!r}"
            )
        if (predictor.grid_rows, predictor.grid_columns) != (encoder.grid_size, encoder.grid_size):
            raise ConfigError(
                f"the predictor's grid {predictor.grid_rows}x{predictor.grid_columns} must equal the encoder's "
                f"{encoder.grid_size}x{encoder.grid_size} in {self.name!r}"
            )
        if not self.frames_per_second > 0:
            raise ConfigError(f"frames_per_second must be positive in {self.name!r}, got {self.frames_per_second}")

    def to_json(self, path: Path) -> None:
        """Write every field, so that the file stays true when a default here changes."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: Path) -> VJepa2Config:
        """Raises: ConfigError: the file is missing, is not JSON, or has an unknown, missing or impossible value."""
        return cls.from_dict(read_json(path), source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> VJepa2Config:
        """Parse nested dictionaries as `to_json` writes them; unknown keys fail.

        Without `planner` a member that is a preset by name plans as that preset does, any other as published.
        """
        checked = checked_section(cls, values, source)
        parts: dict[str, type[Any]] = {
            "encoder": EncoderConfig, "predictor": PredictorConfig, "planner": PlannerDefaults,
        }  # fmt: skip
        for name, kind in parts.items():
            if name in checked:
                checked[name] = kind(**checked_section(kind, checked[name], f"{source}: {name}"))
        if "planner" not in checked and checked["name"] in PRESETS:
            checked["planner"] = PRESETS[checked["name"]].planner
        return cls(**checked)


def read_json(path: Path) -> Any:
    """Raises: ConfigError: the file of dimensions is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the model's dimensions at {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error


def preset(name: str) -> VJepa2Config:
    """The dimensions of a named member: vit_large, vit_huge, vit_giant_xformers (the released model), tabletop."""
    if name not in PRESETS:
        raise NotFound(f"no V-JEPA 2-AC preset is called {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]


def _released(name: str, encoder: EncoderConfig) -> VJepa2Config:
    """The predictor has one size, whatever the encoder's."""
    predictor = PredictorConfig(latent_dim=encoder.dim, dim=1024, depth=24, num_heads=16, mlp_dim=4096)
    return VJepa2Config(name, encoder, predictor)


def check_heads(part: str, dim: int, num_heads: int) -> None:
    """Whether `dim` over `num_heads` gives heads that rotary positions can turn."""
    head_dim, rest = divmod(dim, num_heads)
    if rest or head_dim % 2 or head_dim < MIN_HEAD_DIM:
        raise ConfigError(
            f"{part}.dim {dim} over {num_heads} heads must give an even head size of at least {MIN_HEAD_DIM}, "
            f"got {dim / num_heads:g}"
        )


PRESETS: dict[str, VJepa2Config] = {
    member.name: member
    for member in (
        _released("vit_large", EncoderConfig(dim=1024, depth=24, num_heads=16, mlp_dim=4096)),
        _released("vit_huge", EncoderConfig(dim=1280, depth=32, num_heads=16, mlp_dim=5120)),
        _released("vit_giant_xformers", EncoderConfig(dim=1408, depth=40, num_heads=22, mlp_dim=6144)),
        VJepa2Config(
            "tabletop",
            EncoderConfig(dim=128, depth=4, num_heads=4, mlp_dim=512, image_size=64, patch_size=32),
            PredictorConfig(
                latent_dim=128, dim=128, depth=4, num_heads=4, mlp_dim=512, grid_rows=2, grid_columns=2,
                trained_frames=7,
            ),
            planner=PlannerDefaults(
                rollout_horizon=3, num_samples=64, num_elites=8, num_iterations=3, pinned=((2, 0.0), (3, 0.0))
            ),
        ),
    )
}  # fmt: skip
