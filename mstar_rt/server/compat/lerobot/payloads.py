"""What RobotClient pickles: its policy instructions and its observations, as data of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.lerobot.numpy_pickles import NUMPY
from mstar_rt.server.compat.lerobot.pickle_values import Allowed, Globals, Unfinished
from mstar_rt.server.compat.lerobot.unpickling import unpickled

MODULES = ("lerobot.async_inference.helpers", "lerobot.scripts.server.helpers")
"""Where LeRobot has its classes: since 0.4, and before. The answer names the one that the client named."""
MAX_TIMESTEP = 2**53


@dataclass(frozen=True)
class PolicyInstructions:
    """`features`: what the robot sends, {"observation.state": {"shape", "names", ...}, "observation.images.<camera>":
    {"shape": (h, w, 3), ...}}; not checked yet. `module` is where the client has its classes.
    """

    module: str
    policy_type: str
    pretrained_name_or_path: str
    features: Mapping[str, Any]
    actions_per_chunk: int
    device: str
    rename_map: Mapping[str, Any]


@dataclass(frozen=True)
class TimedObservation:
    """`timestep` is that of the last action that the robot executed, or 0; `timestamp` is the client's own clock, in
    seconds, compared with nothing. `observation` holds joints (numbers), cameras (arrays) and the task (a text).
    """

    timestep: int
    timestamp: float
    must_go: bool
    observation: Mapping[str, Any]


def policy_instructions(data: bytes) -> PolicyInstructions:
    """Raises:  InvalidArgument."""
    record = _record(data, "RemotePolicyConfig")
    return PolicyInstructions(
        module=record.module,
        policy_type=record.field("policy_type", str),
        pretrained_name_or_path=record.field("pretrained_name_or_path", str),
        features=record.field("lerobot_features", dict),
        actions_per_chunk=record.field("actions_per_chunk", int),
        device=record.field("device", str, "cpu"),
        rename_map=record.field("rename_map", dict, {}),
    )


def timed_observation(data: bytes) -> TimedObservation:
    """Raises:  InvalidArgument."""
    record = _record(data, "TimedObservation")
    seen = TimedObservation(
        timestep=record.field("timestep", int),
        timestamp=float(record.field("timestamp", float)),
        must_go=record.field("must_go", bool, False),
        observation=record.field("observation", dict),
    )
    if not 0 <= seen.timestep <= MAX_TIMESTEP:
        raise InvalidArgument(f"the observation has timestep {seen.timestep}, expected 0 to 2**53")
    if not math.isfinite(seen.timestamp):
        raise InvalidArgument(f"the observation has timestamp {seen.timestamp}, expected seconds")
    return seen


@dataclass(frozen=True)
class Record:
    """An object of one of LeRobot's classes: its fields, nothing more."""

    module: str
    name: str
    fields: Mapping[str, Any]

    def field(self, name: str, kind: type[Field], default: Field | None = None) -> Field:
        """Raises:  InvalidArgument: it is missing, or of another type."""
        if name not in self.fields:
            if default is None:
                raise InvalidArgument(f"{self.name} has no field {name!r}")
            return default
        value: Any = self.fields[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise InvalidArgument(f"{self.name}.{name} is of type {type(value).__name__}, expected {kind.__name__}")
        return cast(Field, value)


Field = TypeVar("Field")


class _UnfinishedRecord(Unfinished):
    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._state: Any = None

    def build(self, state: Any) -> None:
        if self._state is not None or type(state) is not dict:
            raise InvalidArgument(f"{self._name} has no fields as LeRobot pickles them")
        self._state = state

    def finished(self, finish: Callable[[Any], Any]) -> Record:
        return Record(self._module, self._name, finish({} if self._state is None else self._state))


class _RecordClass(Allowed):
    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def new(self, arguments: tuple[Any, ...]) -> _UnfinishedRecord:
        if arguments:
            raise InvalidArgument(f"{self._name} is made with arguments, expected none: the fields follow")
        return _UnfinishedRecord(self._module, self._name)


def _allowed(name: str) -> Globals:
    return {**NUMPY, **{(module, name): _RecordClass(module, name) for module in MODULES}}


_ALLOWED = {name: _allowed(name) for name in ("RemotePolicyConfig", "TimedObservation")}


def _record(data: bytes, name: str) -> Record:
    record = unpickled(data, _ALLOWED[name])
    if type(record) is not Record:
        raise InvalidArgument(f"the pickle holds no {name}")
    return record
