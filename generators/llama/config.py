"""Dimensions of a Llama, and how `config.json` of the Hugging Face layout writes them. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError

MODEL_TYPE = "llama"
SERVED_VALUES: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
"""What every published member has; another value would be another computation."""
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class RopeScaling:
    """See nn.rope.LongContext."""

    factor: float
    low_factor: float
    high_factor: float
    original_positions: int


@dataclass(frozen=True)
class LlamaConfig:
    """`is_tied`: the output head is the embedding. `end_ids`: tokens that end a text."""

    name: str
    vocab_size: int
    width: int
    mlp_dim: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int = 2048
    norm_eps: float = 1e-6
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    is_tied: bool = False
    end_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for key in ("vocab_size", "width", "mlp_dim", "depth", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{self.name}: {key} is {getattr(self, key)}, expected at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: {self.num_heads} heads cannot share {self.num_kv_heads} key heads, expected a multiple"
            )
        if self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim {self.head_dim} is odd, but positions turn pairs of channels")


def read_config(folder: Path) -> LlamaConfig:
    """The `config.json` of a published folder; `generation_config.json`, if there is one, says what ends a text.

    Raises:  ConfigError: no such file, another kind of model, or one that computes what is not served here.
    """
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != MODEL_TYPE:
        raise ConfigError(f"{path} describes a {values.get('model_type')!r}, expected model_type {MODEL_TYPE!r}")
    for key, served in SERVED_VALUES.items():
        if values.get(key, served) != served:
            raise ConfigError(f"{path} has {key} {values[key]!r}, served is {served!r} alone")
    lacking = [key for key in REQUIRED if key not in values]
    if lacking:
        raise ConfigError(f"{path} lacks {', '.join(lacking)}")
    width, num_heads = whole(values, "hidden_size", path), whole(values, "num_attention_heads", path)
    base, scaling = _rope(values, path)
    return LlamaConfig(
        name=folder.name,
        vocab_size=whole(values, "vocab_size", path),
        width=width,
        mlp_dim=whole(values, "intermediate_size", path),
        depth=whole(values, "num_hidden_layers", path),
        num_heads=num_heads,
        num_kv_heads=whole(values, "num_key_value_heads", path, num_heads),
        head_dim=whole(values, "head_dim", path, width // max(1, num_heads)),
        max_positions=whole(values, "max_position_embeddings", path, 2048),
        norm_eps=number(values, "rms_norm_eps", path, 1e-6),
        rope_base=base,
        rope_scaling=scaling,
        is_tied=bool(values.get("tie_word_embeddings", False)),
        end_ids=_end_ids(folder, values),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Raises:  ConfigError: there is no such file, or it is no JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {path}; expected a folder as published, with config.json beside it") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no JSON object")
    return values


def generation_defaults(folder: Path) -> dict[str, Any]:
    """What `generation_config.json` says, if there is one."""
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _end_ids(folder: Path, values: Mapping[str, Any]) -> tuple[int, ...]:
    given = generation_defaults(folder).get("eos_token_id", values.get("eos_token_id"))
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(isinstance(number, int) for number in ids):
        raise ConfigError(f"{folder}: eos_token_id is {given!r}, expected token ids")
    return tuple(ids)


def _rope(values: Mapping[str, Any], path: Path) -> tuple[float, RopeScaling | None]:
    """Files before transformers 5 have `rope_theta` and `rope_scaling`, later ones both in `rope_parameters`."""
    given = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: the scaling of positions is {given!r}, expected an object")
    base = number({"rope_theta": values.get("rope_theta", 10_000.0), **given}, "rope_theta", path, 10_000.0)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise ConfigError(f"{path} scales positions by {kind!r}, served are 'default' and 'llama3'")
    numbers = [
        number(given, key, path)
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    ]
    factor, low, high, original = numbers
    if factor < 1 or not 0 < low < high:
        raise ConfigError(f"{path}: scaling llama3 has factor {factor:g}, low {low:g} and high {high:g}")
    return base, RopeScaling(factor, low, high, int(original))


def whole(values: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    """A value of a JSON file. Raises:  ConfigError: it is of another kind, or there is none and no default."""
    value = values.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{path}: {key!r} must be a whole number, got {value!r}")
    return value


def number(values: Mapping[str, Any], key: str, path: Path, default: float | None = None) -> float:
    """The same, of any number."""
    value = values.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{path}: {key!r} must be a number, got {value!r}")
    return float(value)
