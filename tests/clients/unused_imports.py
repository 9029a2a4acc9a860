"""Stand-ins for libraries that LeRobot imports beside its client and that the client does not use.

They are for data sets and training, and hundreds of megabytes. What the client does use, its own code, draccus, torch, numpy
and grpc, is the real thing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

UNUSED = (
    "accelerate", "av", "datasets", "deepdiff", "diffusers", "einops", "imageio", "jsonlines", "pandas", "pyarrow", "serial",
    "torchvision", "transformers",
)  # fmt: skip


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        return _anything(name)

    def __or__(cls, other: Any) -> Any:
        return cls


class _Anything(metaclass=_AnyClass):
    """May be called, derived from, and asked for anything that is no special method."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return _anything(name)


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyClass(name, (_Anything,), {})


class _UnusedModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _anything(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _UnusedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    sys.meta_path.insert(0, _Finder())
