"""Classes that look like LeRobot's where they are pickled: what its RobotClient sends, and what it is answered with."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LEROBOT_MODULE = "lerobot.async_inference.helpers"


@dataclass
class RemotePolicyConfig:
    policy_type: str
    pretrained_name_or_path: str
    lerobot_features: dict[str, Any]
    actions_per_chunk: int
    device: str = "cpu"
    rename_map: dict[str, str] = field(default_factory=dict)


@dataclass
class TimedAction:
    timestamp: float
    timestep: int
    action: Any


@dataclass
class TimedObservation:
    timestamp: float
    timestep: int
    observation: dict[str, Any]
    must_go: bool = False


@contextmanager
def lerobot_classes(module: str = LEROBOT_MODULE) -> Iterator[None]:
    """The classes above are importable under LeRobot's names meanwhile, and pickled so."""
    parts = module.split(".")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    kinds = (RemotePolicyConfig, TimedAction, TimedObservation)
    for name in names:
        assert name not in sys.modules, "this process has LeRobot itself"
        sys.modules[name] = types.ModuleType(name)
    for kind in kinds:
        kind.__module__ = module
        setattr(sys.modules[module], kind.__name__, kind)
    try:
        yield
    finally:
        for kind in kinds:
            kind.__module__ = __name__
        for name in names:
            del sys.modules[name]
