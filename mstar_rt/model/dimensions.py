"""Frozen dataclasses of dimensions, as every family of models has them beside its weights, read from plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import ConfigError, nearest

_SCALARS: dict[Any, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def checked_section(kind: type[Any], values: Any, source: str) -> dict[str, Any]:
    """The values of one dataclass, once its keys and the types of its scalars were checked.

    Raises:  ConfigError: names `source`, the key and the nearest right one.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source} must be a mapping of keys to values, got {type(values).__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise ConfigError(f"{source} has an unknown key {key!r}; {nearest(str(key), fields)}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise ConfigError(f"{source} lacks the key {name!r}, a {field.type}")
        if name in values and field.type in _SCALARS and not isinstance(values[name], _SCALARS[field.type]):
            raise ConfigError(f"{source}: {name!r} must be a {field.type}, got {values[name]!r}")
        if name in values and field.type != "bool" and isinstance(values[name], bool):
            raise ConfigError(f"{source}: {name!r} must be a {field.type}, got {values[name]!r}")
    return dict(values)


def check_positive(section: Any) -> None:
    """Whether all whole numbers of a dataclass of dimensions are at least 1."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.type == "int" and value < 1:
            raise ConfigError(f"{type(section).__name__}.{field.name} must be at least 1, got {value}")
