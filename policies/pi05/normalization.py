"""Between robot units and what the network was trained on, by the statistics that are published with weights.

openpi publishes `norm_stats.json`; LeRobot a safetensors file beside its processors. Both have a mean, a deviation and
quantiles for each dimension of the state and of an action, and differ in how they keep from dividing by zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mstar_rt.errors import CheckpointError, ConfigError
from mstar_rt.nn.checkpoint import read_safetensors

STATISTICS = {"quantile": ("q01", "q99"), "z_score": ("mean", "std")}
"""What each way to normalise reads: the first leads to -1 at one quantile and 1 at the other, the second to mean 0 and
deviation 1. Nothing is clamped."""

OPENPI_EPS = 1e-6
"""Added to every range and every deviation, on both ways."""
LEROBOT_EPS = 1e-8
"""Takes the place of a range of zero on both ways; added to every deviation on the way in only."""

OPENPI_KEYS = {"state": "state", "actions": "actions"}
LEROBOT_KEYS = {"state": "observation.state", "actions": "action"}


@dataclass(frozen=True)
class Statistics:
    """Of one vector, in robot units: float64 [n] by name. `where` is for messages."""

    values: Mapping[str, torch.Tensor]
    where: str
    is_lerobot: bool


@dataclass(frozen=True)
class NormStats:
    """None: the file has none of that vector."""

    state: Statistics | None
    actions: Statistics | None


class Normalizer:
    """Dimension by dimension, along the last one of vectors [..., D].

    Dimensions beyond the statistics pass as they are; statistics beyond D, which some files have for other robots, are
    not used.
    """

    def __init__(self, statistics: Statistics, mode: str, device: str = "cpu") -> None:
        """Raises: ConfigError: the file lacks what `mode` reads."""
        missing = [name for name in STATISTICS[mode] if name not in statistics.values]
        if missing:
            raise ConfigError(
                f"{statistics.where} has no {' and no '.join(missing)}, which normalization {mode!r} needs; "
                "give the statistics or another normalization"
            )
        low, high = (statistics.values[name].to(device) for name in STATISTICS[mode])
        self._to_range = mode == "quantile"
        self._low = low
        self._width = high - low if mode == "quantile" else high
        if self._to_range:
            width = self._width
            padded = torch.where(width == 0, LEROBOT_EPS, width) if statistics.is_lerobot else width + OPENPI_EPS
            self._divisor = self._factor = padded
        else:
            self._divisor = high + (LEROBOT_EPS if statistics.is_lerobot else OPENPI_EPS)
            self._factor = high if statistics.is_lerobot else self._divisor

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """Robot units [..., D] -> [..., D], in the dtype of x.

        In this order of operations the lower quantile becomes -1 exactly, which is where the first bin of a state
        begins.
        """
        known, size = self._known(x)
        scaled = (known - self._low[:size]) / self._divisor[:size]
        return self._joined(scaled * 2 - 1 if self._to_range else scaled, x)

    def snapped(self, x: torch.Tensor, rounding: torch.Tensor) -> torch.Tensor:
        """x [..., D] with dimensions that never varied set to the one number that they had, where they differ from it
        by no more than `rounding` [..., D]: `normalise` divides by next to nothing there, and would make much of it.
        """
        known, size = self._known(x)
        constant = self._low[:size].expand_as(known)
        is_rounded = (self._width[:size] == 0) & ((known - constant).abs() <= rounding[..., :size])
        return self._joined(torch.where(is_rounded, constant, known), x)

    def unnormalise(self, x: torch.Tensor) -> torch.Tensor:
        """The way back."""
        known, size = self._known(x)
        scaled = (known + 1) / 2 if self._to_range else known
        return self._joined(scaled * self._factor[:size] + self._low[:size], x)

    def _known(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The dimensions that have statistics, float64, and their number."""
        size = min(len(self._low), x.shape[-1])
        return x[..., :size].to(torch.float64), size

    def _joined(self, known: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([known.to(x.dtype), x[..., known.shape[-1] :]], dim=-1)


def read_norm_stats(path: Path) -> NormStats:
    """Statistics from openpi's `norm_stats.json`, or from the `.safetensors` of LeRobot's (un)normalizer processor.

    Raises: ConfigError: no such file, of another layout, or a statistic is not finite or impossible.
    """
    is_lerobot = path.suffix == ".safetensors"
    values, keys = (_read_lerobot(path), LEROBOT_KEYS) if is_lerobot else (_read_openpi(path), OPENPI_KEYS)
    found = {
        vector: _statistics(values[key], f"{path}, {key!r}", is_lerobot)
        for vector, key in keys.items()
        if key in values
    }
    if not found:
        raise ConfigError(f"{path} has no statistics of {' or '.join(map(repr, keys.values()))}")
    return NormStats(found.get("state"), found.get("actions"))


def _read_openpi(path: Path) -> dict[str, dict[str, Any]]:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the statistics at {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    vectors = held.get("norm_stats") if isinstance(held, Mapping) else None
    if not isinstance(vectors, Mapping) or not all(isinstance(value, Mapping) for value in vectors.values()):
        raise ConfigError(f"{path} is no file of statistics: expected 'norm_stats' with a mapping for each vector")
    return {key: dict(value) for key, value in vectors.items()}


def _read_lerobot(path: Path) -> dict[str, dict[str, Any]]:
    """Keys are `<feature>.<statistic>`."""
    try:
        tensors = read_safetensors(path)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    values: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        feature, _, name = key.rpartition(".")
        values.setdefault(feature, {})[name] = tensor
    return values


def _statistics(held: Mapping[str, Any], where: str, is_lerobot: bool) -> Statistics:
    names = [name for pair in STATISTICS.values() for name in pair if held.get(name) is not None]
    values = {name: _vector(held[name], f"{where}: {name}") for name in names}
    if len({len(value) for value in values.values()}) > 1:
        sizes = ", ".join(f"{name} {len(value)}" for name, value in values.items())
        raise ConfigError(f"{where} has statistics of different sizes: {sizes}")
    if "std" in values and (values["std"] < 0).any():
        raise ConfigError(f"{where}: std has a number below 0")
    if "q01" in values and "q99" in values and (values["q99"] < values["q01"]).any():
        raise ConfigError(f"{where}: q99 is below q01 in some dimension")
    return Statistics(values, where, is_lerobot)


def _vector(value: Any, where: str) -> torch.Tensor:
    try:
        vector = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} is not a list of numbers") from error
    if vector.dim() != 1 or not len(vector):
        raise ConfigError(f"{where} has shape {list(vector.shape)}, expected one dimension of at least one number")
    if not torch.isfinite(vector).all():
        raise ConfigError(f"{where} holds NaN or infinity")
    return vector
