"""`config.json` of a published policy: what it sees, what it does, and how both are normalised. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.model.policy import CameraSpec

CONFIG_FILE = "config.json"
STATE, ACTION = "observation.state", "action"
CAMERA_PREFIXES = ("observation.images.", "observation.")
KINDS = ("VISUAL", "STATE", "ACTION")
MODES = ("MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10", "IDENTITY")

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Features:
    """What a policy reads and gives. `camera_keys` are the published names of `cameras`, in the order in which the
    network takes them; `state_size` None: it reads no state."""

    cameras: tuple[CameraSpec, ...]
    camera_keys: tuple[str, ...]
    state_size: int | None
    action_size: int

    @property
    def key_of(self) -> dict[str, str]:
        """The published name of a camera, by ours."""
        return {camera.name: key for camera, key in zip(self.cameras, self.camera_keys, strict=True)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of everything that is normalised, by published name: the shape of one statistic, which is per channel of
        an image."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self.camera_keys, (3,))
        if self.state_size is not None:
            shapes[STATE] = (self.state_size,)
        return {**shapes, ACTION: (self.action_size,)}


class ConfigFile:
    """The values of a `config.json`, each held against its kind as it is asked for.

    Raises: ConfigError: no such file, no JSON, or of another policy.
    """

    def __init__(self, path: Path, policy: str) -> None:
        self.path = path
        values = read_json(path)
        if values.get("type") != policy:
            raise ConfigError(f"{path} describes a policy of type {values.get('type')!r}, expected {policy!r}")
        if values.get("use_peft"):
            raise ConfigError(f"{path} has use_peft true: the weights are adapters, merge them into their base first")
        self.values = values

    def whole(self, key: str, default: int, minimum: int = 1) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(f"{self.path}: {key!r} is {value!r}, expected a whole number of at least {minimum}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"{self.path}: {key!r} is {value!r}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Booleans, which some versions write as 0 and 1."""
        value = self.values.get(key, default)
        if value not in (True, False):
            raise ConfigError(f"{self.path}: {key!r} is {value!r}, expected true or false")
        return bool(value)

    def choice(self, key: str, default: str, served: tuple[str, ...]) -> str:
        value = self.values.get(key, default)
        if value not in served:
            raise ConfigError(f"{self.path} has {key} {value!r}, which is not served, {nearest(str(value), served)}")
        return str(value)

    def wholes(self, key: str, default: tuple[int, ...] | None, length: int | None = None) -> tuple[int, ...] | None:
        """A list of whole numbers, or null."""
        value = self.values.get(key, default)
        if value is None:
            return None
        numbers = tuple(value) if isinstance(value, (list, tuple)) else ()
        if not numbers or any(not isinstance(one, int) or isinstance(one, bool) or one < 1 for one in numbers):
            raise ConfigError(f"{self.path}: {key!r} is {value!r}, expected a list of whole numbers of at least 1")
        if length is not None and len(numbers) != length:
            raise ConfigError(f"{self.path}: {key!r} has {len(numbers)} numbers, expected {length}")
        return numbers

    def features(self) -> Features:
        """Raises: ConfigError: something is read or given that no control session has."""
        inputs, outputs = self._features("input_features"), self._features("output_features")
        cameras = {key: self._camera(key, shape) for key, (kind, shape) in inputs.items() if kind == "VISUAL"}
        for key, (kind, _) in inputs.items():
            if key not in cameras and (key, kind) != (STATE, "STATE"):
                raise ConfigError(
                    f"{self.path} reads {key!r} of type {kind}, which no control session gives; served are cameras "
                    f"and {STATE!r}"
                )
        if not cameras:
            raise ConfigError(f"{self.path} has no camera among its input_features, expected at least one")
        if list(outputs) != [ACTION]:
            raise ConfigError(f"{self.path} has the output_features {', '.join(outputs)}, expected {ACTION!r} alone")
        state_size = self._vector_size(STATE, inputs[STATE][1]) if STATE in inputs else None
        action_size = self._vector_size(ACTION, outputs[ACTION][1])
        return Features(tuple(cameras.values()), tuple(cameras), state_size, action_size)

    def modes(self, default: Mapping[str, str]) -> dict[str, str]:
        """How each of KINDS is normalised; `default` where the file says nothing of normalisation."""
        return checked_modes(self.values.get("normalization_mapping", default), f"{self.path}, normalization_mapping")

    def _features(self, section: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        held = self.values.get(section)
        if not isinstance(held, Mapping) or not held:
            raise ConfigError(
                f"{self.path} has no {section}, expected a mapping of names to type and shape; a file of before 2025 "
                "is converted by LeRobot itself"
            )
        listed = {}
        for key, feature in held.items():
            kind, shape = (feature.get(name) for name in ("type", "shape")) if isinstance(feature, Mapping) else ("", 0)
            if not isinstance(kind, str) or not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
                raise ConfigError(f"{self.path}: {section}[{key!r}] is {feature!r}, expected a type and a shape")
            listed[str(key)] = (kind, tuple(shape))
        return listed

    def _camera(self, key: str, shape: tuple[int, ...]) -> CameraSpec:
        if len(shape) != 3 or shape[0] != 3 or min(shape) < 1:
            raise ConfigError(f"{self.path}: camera {key!r} has shape {list(shape)}, expected [3, height, width]")
        prefix = next((prefix for prefix in CAMERA_PREFIXES if key.startswith(prefix)), "")
        return CameraSpec(key.removeprefix(prefix), height=shape[1], width=shape[2])

    def _vector_size(self, key: str, shape: tuple[int, ...]) -> int:
        if len(shape) != 1 or shape[0] < 1:
            raise ConfigError(f"{self.path}: {key!r} has shape {list(shape)}, expected one size")
        return shape[0]


def checked_modes(held: Any, where: str) -> dict[str, str]:
    """How each of KINDS is normalised; what is not named is not.

    Raises: ConfigError: an unknown way, or no mapping.
    """
    if not isinstance(held, Mapping):
        raise ConfigError(f"{where} is {held!r}, expected a mapping of {', '.join(KINDS)} to a way to normalise")
    for kind, mode in held.items():
        if mode not in MODES:
            raise ConfigError(f"{where} has {kind} {mode!r}, {nearest(str(mode), MODES)}")
    return {kind: str(held.get(kind, "IDENTITY")) for kind in KINDS}


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; a published policy has it beside its weights"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, expected an object")
    return values


def check_declared(name: str, checkpoint: str, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Raises: ConfigError: the deployment gives the model `name` other options than `known`, or no checkpoint."""
    others = [key for key in options if key not in known]
    if others:
        some = f"no options but {', '.join(known)}" if known else "no options"
        raise ConfigError(f"model {name!r} takes {some}, but got {', '.join(others)}: {CONFIG_FILE} has the rest")
    if not checkpoint:
        raise ConfigError(f"model {name!r} has no checkpoint, name the folder of its {CONFIG_FILE} and weights")


def folder_of(checkpoint: str) -> Path:
    """Where the files of a policy lie: `checkpoint` is that folder, or its weights file."""
    path = Path(checkpoint)
    return path if path.is_dir() else path.parent
