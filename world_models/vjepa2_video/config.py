"""Dimensions of V-JEPA 2 without actions, and how `config.json` of the Hugging Face layout writes them. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, NotFound, nearest
from mstar_rt.model.dimensions import check_positive
from world_models.vjepa2.config import EncoderConfig, check_heads, read_json


@dataclasses.dataclass(frozen=True)
class MaskedPredictorConfig:
    """Predicts the latents of hidden patches from those of visible ones. Each of the `num_mask_tokens` learned tokens
    stood for the hidden patches of one kind of mask in training."""

    latent_dim: int
    dim: int = 384
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 1536
    num_mask_tokens: int = 10

    def __post_init__(self) -> None:
        check_positive(self)
        check_heads("predictor", self.dim, self.num_heads)

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """One member of the family. `max_frames` bounds a clip: as many frames as training had, for the published ones."""

    name: str
    encoder: EncoderConfig
    predictor: MaskedPredictorConfig
    max_frames: int = 64

    def __post_init__(self) -> None:
        encoder = self.encoder
        if self.predictor.latent_dim != encoder.dim:
            raise ConfigError(
                f"predictor.latent_dim {self.predictor.latent_dim} must equal encoder.dim {encoder.dim} in "
                f"{self.name!r}"
            )
        if encoder.num_patches < 2:
            raise ConfigError(
                f"a frame of {self.name!r} has one patch, so that none could be hidden; image_size is wrong"
            )
        if self.max_frames < encoder.tubelet_size or self.max_frames % encoder.tubelet_size:
            raise ConfigError(
                f"max_frames {self.max_frames} of {self.name!r} must be a multiple of the tubelet's frames, "
                f"{encoder.tubelet_size}"
            )

    @property
    def max_patches(self) -> int:
        """Patches of the longest clip."""
        return self.max_frames // self.encoder.tubelet_size * self.encoder.num_patches

    @classmethod
    def from_hugging_face(cls, path: Path) -> VideoConfig:
        """Read a `config.json` of transformers' VJEPA2Model; what it leaves out has the value of the format.

        Raises: ConfigError: no such file, another kind of model, or one that computes what is not served here.
        """
        values = read_json(path)
        if not isinstance(values, Mapping) or values.get("model_type") != MODEL_TYPE:
            raise ConfigError(f"{path} does not describe a model of model_type {MODEL_TYPE!r}")
        return cls._from_values(_Values(values, path), path)

    @classmethod
    def _from_values(cls, values: _Values, path: Path) -> VideoConfig:
        for key, served in SERVED_VALUES.items():
            if values.given.get(key, served) != served:
                raise ConfigError(f"{path} has {key} {values.given[key]!r}, served is {served!r} alone")
        dim, predictor_dim = values.whole("hidden_size"), values.whole("pred_hidden_size")
        encoder = EncoderConfig(
            dim=dim,
            depth=values.whole("num_hidden_layers"),
            num_heads=values.whole("num_attention_heads"),
            mlp_dim=int(dim * values.ratio("mlp_ratio")),
            image_size=values.whole("crop_size"),
            patch_size=values.whole("patch_size"),
            tubelet_size=values.whole("tubelet_size"),
            num_channels=values.whole("in_chans"),
        )
        predictor = MaskedPredictorConfig(
            latent_dim=dim,
            dim=predictor_dim,
            depth=values.whole("pred_num_hidden_layers"),
            num_heads=values.whole("pred_num_attention_heads"),
            mlp_dim=int(predictor_dim * values.ratio("pred_mlp_ratio")),
            num_mask_tokens=values.whole("pred_num_mask_tokens"),
        )
        return cls(path.parent.name or path.stem, encoder, predictor, max_frames=values.whole("frames_per_clip"))


MODEL_TYPE = "vjepa2"
FORMAT_DEFAULTS: dict[str, float] = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "mlp_ratio": 4.0,
    "crop_size": 256, "patch_size": 16, "tubelet_size": 2, "in_chans": 3, "frames_per_clip": 64,
    "pred_hidden_size": 384, "pred_num_hidden_layers": 12, "pred_num_attention_heads": 12, "pred_mlp_ratio": 4.0,
    "pred_num_mask_tokens": 10,
}  # fmt: skip
SERVED_VALUES = {"hidden_act": "gelu", "layer_norm_eps": 1e-6, "qkv_bias": True}
"""What every published member has; another value would be another computation."""


class _Values:
    """The numbers of a `config.json`, each of its kind."""

    def __init__(self, given: Mapping[str, Any], path: Path) -> None:
        self.given = given
        self._path = path

    def whole(self, key: str) -> int:
        value = self.given.get(key, FORMAT_DEFAULTS[key])
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{self._path}: {key!r} must be a whole number, got {value!r}")
        return value

    def ratio(self, key: str) -> float:
        value = self.given.get(key, FORMAT_DEFAULTS[key])
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"{self._path}: {key!r} must be a number, got {value!r}")
        return value


def preset(name: str) -> VideoConfig:
    """The dimensions of a published member: vit_large, vit_huge or vit_giant_xformers, `_384` for larger images."""
    if name not in PRESETS:
        raise NotFound(f"no V-JEPA 2 preset is called {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]


def _published(name: str, **encoder: int) -> tuple[VideoConfig, VideoConfig]:
    small, large = EncoderConfig(**encoder, image_size=256), EncoderConfig(**encoder, image_size=384)
    predictor = MaskedPredictorConfig(latent_dim=small.dim)
    return VideoConfig(name, small, predictor), VideoConfig(f"{name}_384", large, predictor)


PRESETS: dict[str, VideoConfig] = {
    member.name: member
    for members in (
        _published("vit_large", dim=1024, depth=24, num_heads=16, mlp_dim=4096),
        _published("vit_huge", dim=1280, depth=32, num_heads=16, mlp_dim=5120),
        _published("vit_giant_xformers", dim=1408, depth=40, num_heads=22, mlp_dim=6144),
    )
    for member in members
}
