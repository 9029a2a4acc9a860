"""Where a published policy has its statistics and how it uses them. No torch.

Newer ones have them in files that `policy_preprocessor.json` and `policy_postprocessor.json` name; older ones beside
the weights, under the names of BUFFERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError
from policies.lerobot.config_file import ACTION, STATE, Features, checked_modes, read_json

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
BUFFERS = ("normalize_inputs", "unnormalize_outputs", "normalize_targets")
"""Beginnings of the keys of an older policy's statistics; the last are those of training."""
NORMALISE, UNNORMALISE, RENAME = "normalizer_processor", "unnormalizer_processor", "rename_observations_processor"
PLAIN_STEPS = (RENAME, "to_batch_processor", "device_processor")
"""Steps that have nothing to compute here."""
DEFAULT_EPS = 1e-8


@dataclass(frozen=True)
class Side:
    """How what goes in, or what comes out, is normalised: the way of each kind, and the file of statistics, None if the
    policy has none or has them beside its weights."""

    modes: Mapping[str, str]
    eps: float = DEFAULT_EPS
    file: Path | None = None

    def mode(self, key: str) -> str:
        """How the feature of this published name is normalised."""
        return self.modes["ACTION" if key == ACTION else "STATE" if key == STATE else "VISUAL"]


@dataclass(frozen=True)
class Normalization:
    """`in_weights`: the statistics stand beside the weights, as in older policies."""

    inputs: Side
    outputs: Side
    in_weights: bool

    def names(self, features: Features) -> tuple[str, ...]:
        """What a control session calls the statistics: a policy has one set of them, or normalises nothing."""
        sides = [(self.outputs if key == ACTION else self.inputs).mode(key) for key in features.shapes]
        return ("checkpoint",) if any(mode != "IDENTITY" for mode in sides) else ()


def read_normalization(folder: Path, features: Features, modes: Mapping[str, str]) -> Normalization:
    """How the policy in `folder` is normalised; `modes` are those of its `config.json`, which count if it has no
    processor files.

    Raises: ConfigError: one of the two files is missing, or has a step that would compute something else.
    """
    before, after = folder / PREPROCESSOR, folder / POSTPROCESSOR
    if not before.is_file() and not after.is_file():
        return Normalization(Side(modes), Side(modes), in_weights=True)
    inputs = [key for key in features.shapes if key != ACTION]
    return Normalization(_side(before, NORMALISE, inputs), _side(after, UNNORMALISE, [ACTION]), in_weights=False)


def _side(path: Path, normalising: str, keys: list[str]) -> Side:
    side = Side(checked_modes({}, str(path)))
    for step in _steps(path):
        name, config = step.get("registry_name", step.get("class")), step.get("config", {})
        where = f"{path}, step {name!r}"
        if name == normalising:
            side = _normalising(step, config, path.parent, where)
            _check_covered(side, config, keys, where)
        elif name not in PLAIN_STEPS:
            raise ConfigError(f"{where} is not served, expected {', '.join((*PLAIN_STEPS, normalising))}")
        elif name == RENAME and config.get("rename_map"):
            raise ConfigError(f"{where} renames {', '.join(config['rename_map'])}; give the policy's own names instead")
    return side


def _steps(path: Path) -> list[Mapping[str, Any]]:
    steps = read_json(path).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{path} has no list of steps")
    if not all(isinstance(step.get("config", {}), dict) for step in steps):
        raise ConfigError(f"{path} has a step whose config is no object")
    return steps


def _normalising(step: Mapping[str, Any], config: Mapping[str, Any], folder: Path, where: str) -> Side:
    file, eps = step.get("state_file"), config.get("eps", DEFAULT_EPS)
    if file is not None and (not isinstance(file, str) or Path(file).name != file):
        raise ConfigError(f"{where} has the state_file {file!r}, expected the name of a file beside it")
    if not isinstance(eps, float) or eps <= 0:
        raise ConfigError(f"{where} has eps {eps!r}, expected a small number over 0")
    return Side(checked_modes(config.get("norm_map", {}), where), eps, None if file is None else folder / file)


def _check_covered(side: Side, config: Mapping[str, Any], keys: list[str], where: str) -> None:
    """A step leaves alone what it does not list, whatever its modes say."""
    listed, only = config.get("features", {}), config.get("normalize_observation_keys")
    for key in keys:
        left_out = key not in listed or (only is not None and key != ACTION and key not in only)
        if left_out and side.mode(key) != "IDENTITY":
            raise ConfigError(
                f"{where} does not list {key!r}, which config.json has; the two are of different policies"
            )
