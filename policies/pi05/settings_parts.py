"""The parts of a policy's settings, read from plain values, and checked. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.model.policy import CameraSpec, VectorSpec

ONLY_STATISTICS = "default"
"""The name of statistics that are given as one file."""


def read_cameras(where: str, value: Any) -> tuple[CameraSpec, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: 'cameras' is a {type(value).__name__}, expected a list")
    return tuple(read_camera(f"{where}: camera {index}", entry) for index, entry in enumerate(value))


def read_camera(where: str, entry: Any) -> CameraSpec:
    check_keys(where, entry, ("name", "height", "width"), ("may_be_masked",))
    name = value_of(where, entry, "name", str, "")
    if not name.isidentifier():
        raise ConfigError(f"{where} has the name {name!r}, expected letters, digits and '_'")
    height, width = (value_of(where, entry, key, int, 0) for key in ("height", "width"))
    if min(height, width) < 1:
        raise ConfigError(f"{where} ({name!r}) has {height}x{width} pixels, expected at least 1x1")
    return CameraSpec(name, height, width, value_of(where, entry, "may_be_masked", bool, False))


def read_vector(where: str, value: Any, more: tuple[str, ...] = ()) -> VectorSpec:
    check_keys(where, value, ("size",), ("names", "units", *more))
    size = value_of(where, value, "size", int, 0)
    if size < 1:
        raise ConfigError(f"{where} has size {size}, expected at least 1")
    texts = [tuple(value_of(where, value, key, list, [])) for key in ("names", "units")]
    for key, names in zip(("names", "units"), texts, strict=True):
        if names and (len(names) != size or not all(isinstance(name, str) for name in names)):
            raise ConfigError(f"{where} has {key} {list(names)}, expected {size} texts")
    return VectorSpec(size, *texts)


def read_action(where: str, value: Any, state: VectorSpec | None) -> tuple[VectorSpec, tuple[int | None, ...]]:
    """The action, and for each of its dimensions the dimension of the state that it is relative to."""
    where = f"{where}: 'action'"
    vector = read_vector(where, value, ("relative_to",))
    relative_to = tuple(value_of(where, value, "relative_to", list, [None] * vector.size))
    if len(relative_to) != vector.size:
        raise ConfigError(f"{where} has {len(relative_to)} entries in 'relative_to', expected {vector.size}")
    for index in relative_to:
        if index is None:
            continue
        size = 0 if state is None else state.size
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < size:
            raise ConfigError(
                f"{where} is relative to {index!r}, expected null or an index of the state's {size} numbers"
            )
    return vector, relative_to


def read_files(where: str, value: Any) -> dict[str, str]:
    """Files of statistics by name."""
    files = {ONLY_STATISTICS: value} if isinstance(value, str) and value else value or {}
    if not isinstance(files, Mapping) or not all(isinstance(path, str) and path for path in files.values()):
        raise ConfigError(f"{where}: 'norm_stats' is {value!r}, expected a path or a mapping of names to paths")
    return dict(files)


def check_keys(where: str, value: Any, needed: tuple[str, ...], optional: tuple[str, ...]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {value!r}, expected a mapping")
    for key in value:
        if key not in (*needed, *optional):
            raise ConfigError(f"{where} has an unknown key {key!r}, {nearest(str(key), (*needed, *optional))}")
    for key in needed:
        if key not in value:
            raise ConfigError(f"{where} lacks {key!r}")


def value_of(where: str, values: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """The value under `key`, of that kind, or the default."""
    value = values.get(key, default)
    if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise ConfigError(f"{where}: {key!r} is {value!r}, expected {kind.__name__}")
    return value
