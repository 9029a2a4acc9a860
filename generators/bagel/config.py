"""Dimensions of a BAGEL, as its published files write them. No torch.

`llm_config.json` and `vit_config.json` describe the language model and the vision tower. What no published file says
stands here as published; an object `mstar_rt` in `config.json` may say otherwise: see BLOCK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from generators.llama.config import number, read_json, whole
from mstar_rt.errors import ConfigError, nearest

BLOCK = "mstar_rt"
"""Of config.json, with any of: `autoencoder`, `latent_size`, `vision_size`, `defaults` (objects with fields of the
classes below), `latent_patch`, `max_latent_side`, `max_vision_side`, `think_prompt`."""
LANGUAGE_FILE, VISION_FILE, CONFIG_FILE = "llm_config.json", "vit_config.json", "config.json"
RENORMALIZATIONS = ("none", "global", "channel", "text_channel")


@dataclass(frozen=True)
class LanguageConfig:
    """Every layer has two sets of weights: one for text and for images that are looked at, one for latents."""

    vocab_size: int
    width: int
    mlp_dim: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    rope_base: float = 1_000_000.0
    is_tied: bool = False
    max_positions: int = 32_768


@dataclass(frozen=True)
class VisionConfig:
    """`depth` layers are run, one less than the file says. `table_side`: patches each way of the tower's own positions;
    `max_side`: of those that are added behind it, and the most that an image may have."""

    width: int
    mlp_dim: int
    depth: int
    num_heads: int
    patch_size: int
    table_side: int
    max_side: int = 70


@dataclass(frozen=True)
class AutoencoderConfig:
    """Of the FLUX family. Latents are `scale` * (z - `shift`)."""

    channels: int = 128
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    num_blocks: int = 2
    latent_channels: int = 16
    num_groups: int = 32
    scale: float = 0.3611
    shift: float = 0.1159

    @property
    def downsample(self) -> int:
        """Pixels each way of a latent."""
        return 2 ** (len(self.multipliers) - 1)


@dataclass(frozen=True)
class SizeRule:
    """How an image is resized before it is encoded: the longer side to at most `max_side`, the shorter one to at least
    `min_side`, both to multiples of `multiple`, with at most `max_pixels` pixels."""

    max_side: int
    min_side: int
    multiple: int
    max_pixels: int = 14 * 14 * 9 * 1024


@dataclass(frozen=True)
class Defaults:
    """What is drawn with where a request does not say. `num_denoise_steps` are evaluations of the network: the
    published 50 timesteps are 49."""

    height: int = 1024
    width: int = 1024
    num_denoise_steps: int = 49
    timestep_shift: float = 3.0
    text_guidance: float = 4.0
    image_guidance: float = 1.0
    guidance_start: float = 0.4
    guidance_end: float = 1.0
    renormalization: str = "global"
    renormalization_min: float = 0.0
    edit_text_guidance: float = 4.0
    edit_image_guidance: float = 2.0
    edit_guidance_start: float = 0.0
    edit_renormalization: str = "text_channel"


@dataclass(frozen=True)
class BagelConfig:
    """`latent_patch`: latents each way of a token; `max_latent_side`: tokens each way of the largest image. Where
    `think_prompt` is empty the model does not plan in words before it draws."""

    name: str
    language: LanguageConfig
    vision: VisionConfig
    autoencoder: AutoencoderConfig = AutoencoderConfig()
    latent_patch: int = 2
    max_latent_side: int = 64
    latent_size: SizeRule = SizeRule(1024, 512, 16)
    vision_size: SizeRule = SizeRule(980, 224, 14)
    think_prompt: str = ""
    defaults: Defaults = Defaults()

    @property
    def latent_dim(self) -> int:
        """Numbers of a token."""
        return self.latent_patch**2 * self.autoencoder.latent_channels

    @property
    def token_pixels(self) -> int:
        """Pixels each way of a token."""
        return self.latent_patch * self.autoencoder.downsample


def read_config(folder: Path) -> BagelConfig:
    """The dimensions of a published folder.

    Raises:  ConfigError: a file is missing or of another kind of model, or dimensions do not fit together.
    """
    path = folder / CONFIG_FILE
    block = read_json(path).get(BLOCK, {}) if path.is_file() else {}
    if not isinstance(block, dict):
        raise ConfigError(f"{path}: {BLOCK!r} is {block!r}, expected an object of names and values")
    usual = BagelConfig(folder.name, _language(folder / LANGUAGE_FILE), _vision(folder / VISION_FILE, block, path))
    config = replace(usual, **_changes(block, usual, path))
    _check(config, path)
    return config


def _language(path: Path) -> LanguageConfig:
    values = read_json(path)
    for key, served in (("model_type", "qwen2"), ("hidden_act", "silu")):
        if values.get(key, served) != served:
            raise ConfigError(f"{path} has {key} {values[key]!r}, served is {served!r} alone")
    width, num_heads = whole(values, "hidden_size", path), whole(values, "num_attention_heads", path)
    return LanguageConfig(
        vocab_size=whole(values, "vocab_size", path),
        width=width,
        mlp_dim=whole(values, "intermediate_size", path),
        depth=whole(values, "num_hidden_layers", path),
        num_heads=num_heads,
        num_kv_heads=whole(values, "num_key_value_heads", path, num_heads),
        head_dim=whole(values, "head_dim", path, width // max(1, num_heads)),
        norm_eps=number(values, "rms_norm_eps", path, 1e-6),
        rope_base=number(values, "rope_theta", path, 1_000_000.0),
        is_tied=bool(values.get("tie_word_embeddings", False)),
        max_positions=whole(values, "max_position_embeddings", path, 32_768),
    )


def _vision(path: Path, block: Mapping[str, Any], where: Path) -> VisionConfig:
    """The published tower runs without its last layer."""
    values = read_json(path)
    patch_size = whole(values, "patch_size", path)
    return VisionConfig(
        width=whole(values, "hidden_size", path),
        mlp_dim=whole(values, "intermediate_size", path),
        depth=whole(values, "num_hidden_layers", path) - 1,
        num_heads=whole(values, "num_attention_heads", path),
        patch_size=patch_size,
        table_side=whole(values, "image_size", path) // max(1, patch_size),
        max_side=whole(block, "max_vision_side", where, 70),
    )


Part = TypeVar("Part", AutoencoderConfig, SizeRule, Defaults)


def _changes(block: Mapping[str, Any], usual: BagelConfig, path: Path) -> dict[str, Any]:
    """What the block says, in place of what is usual."""
    parts = {name: getattr(usual, name) for name in ("autoencoder", "latent_size", "vision_size", "defaults")}
    known = (*parts, "latent_patch", "max_latent_side", "max_vision_side", "think_prompt")
    changes: dict[str, Any] = {}
    for key, value in block.items():
        if key not in known:
            raise ConfigError(f"{path}: {BLOCK!r} has an unknown key {key!r}, {nearest(key, known)}")
        if key in parts:
            changes[key] = _part(parts[key], value, f"{path}: {key!r} of {BLOCK!r}")
        elif key == "think_prompt":
            if not isinstance(value, str):
                raise ConfigError(f"{path}: 'think_prompt' must be text, got {value!r}")
            changes[key] = value
        elif key != "max_vision_side":
            changes[key] = whole(block, key, path)
    return changes


def _part(usual: Part, values: Any, where: str) -> Part:
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is {values!r}, expected an object of names and values")
    known = {field.name: getattr(usual, field.name) for field in fields(usual)}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where} has an unknown key {key!r}, {nearest(key, known)}")
        given[key] = _like(known[key], value, f"{where} has {key}")
    return replace(usual, **given)


def _like(usual: Any, value: Any, what: str) -> Any:
    """`value`, if it is of the kind of `usual`."""
    if isinstance(usual, tuple):
        if isinstance(value, list) and value and all(type(each) is int and each > 0 for each in value):
            return tuple(value)
        raise ConfigError(f"{what} {value!r}, expected a list of whole numbers from 1")
    if isinstance(usual, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(usual):
        raise ConfigError(f"{what} {value!r}, expected {'text' if isinstance(usual, str) else 'a whole number'}")
    return value


def _check(config: BagelConfig, path: Path) -> None:
    language, vision, autoencoder = config.language, config.vision, config.autoencoder
    sizes = {
        f"{part} {field.name}": value
        for part, each in (("language", language), ("vision", vision), ("autoencoder", autoencoder))
        for field in fields(each)
        if isinstance(value := getattr(each, field.name), int)
    }
    sizes |= {"latent_patch": config.latent_patch, "max_latent_side": config.max_latent_side}
    for name, size in sizes.items():
        if size < 1 and not isinstance(size, bool):
            raise ConfigError(f"{path.parent}: {name} is {size}, expected at least 1")
    if language.num_heads % language.num_kv_heads or language.head_dim % 2:
        raise ConfigError(
            f"{path.parent}: {language.num_heads} heads of {language.head_dim} channels cannot share "
            f"{language.num_kv_heads} key heads, expected a multiple and an even number of channels"
        )
    if vision.width % vision.num_heads:
        raise ConfigError(f"{path.parent}: {vision.num_heads} heads do not divide the vision tower's {vision.width}")
    if language.width % 4:
        raise ConfigError(f"{path.parent}: a width of {language.width} cannot hold sines of two positions, expected 4n")
    for multiplier in autoencoder.multipliers:
        if autoencoder.channels * multiplier % autoencoder.num_groups:
            raise ConfigError(
                f"{path}: {autoencoder.channels * multiplier} channels of the autoencoder are not divided by "
                f"{autoencoder.num_groups} groups"
            )
    if config.latent_size.multiple % config.token_pixels or config.vision_size.multiple % vision.patch_size:
        raise ConfigError(
            f"{path}: images are resized to multiples of {config.latent_size.multiple} and "
            f"{config.vision_size.multiple} pixels, expected multiples of {config.token_pixels} and {vision.patch_size}"
        )
    for name in (config.defaults.renormalization, config.defaults.edit_renormalization):
        if name not in RENORMALIZATIONS:
            raise ConfigError(f"{path}: renormalization is {name!r}, {nearest(name, RENORMALIZATIONS)}")
