"""Names and shapes of what weights files hold, read from safetensors headers: no tensor is loaded, and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mstar_rt.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]
Value = TypeVar("Value")

SHOWN_KEYS = 3
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What a folder holds: all weights in one file, or the list of those that are spread over several."""
MAX_HEADER_BYTES = 100_000_000


def safetensors_files(path: Path) -> tuple[Path, ...]:
    """The files that make up a checkpoint: a file alone, those that an index lists, or what a folder holds of the two.

    Raises: CheckpointError: there is none, or the index does not list files that lie beside it.
    """
    if path.is_dir():
        found = next((path / name for name in (WHOLE, INDEX) if (path / name).is_file()), None)
        if found is None:
            raise CheckpointError(f"{path} holds neither {WHOLE} nor {INDEX}; name the weights file itself")
        path = found
    check_exists(path)
    if path.suffix != ".json":
        return (path,)
    return tuple(path.parent / name for name in sorted(set(_weight_map(path).values())))


def safetensors_shapes(path: Path) -> Shapes:
    """The shape of every tensor of a checkpoint, of whatever many files.

    Raises: CheckpointError: a file is missing or damaged, two hold one key, or the index and its files differ.
    """
    shapes: Shapes = {}
    for file in safetensors_files(path):
        held = _header(file)
        twice = [key for key in held if key in shapes]
        if twice:
            raise CheckpointError(f"{file} has {shown(twice)}, which another file of the checkpoint has too; keep one")
        shapes |= held
    index = path / INDEX if path.is_dir() and not (path / WHOLE).is_file() else path
    if index.suffix == ".json":
        _check_index(index, shapes)
    return shapes


def in_sections(values: Mapping[str, Value], sections: Sequence[str], where: Path) -> dict[str, dict[str, Value]]:
    """What is named `<section>.<key>`, by section; a key of no section is refused."""
    split: dict[str, dict[str, Value]] = {section: {} for section in sections}
    strangers = []
    for name, value in values.items():
        section, _, key = name.partition(".")
        if section in split:
            split[section][key] = value
        else:
            strangers.append(name)
    if strangers:
        raise CheckpointError(f"{where} has unknown keys {shown(strangers)}; keys start with {' or '.join(sections)}")
    return split


def check_exists(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"there is no weights file at {path}; check the path or download the file first")


def shown(keys: Sequence[str]) -> str:
    """The first few keys, for a message."""
    names = sorted(keys)
    text = ", ".join(repr(name) for name in names[:SHOWN_KEYS])
    return text if len(names) <= SHOWN_KEYS else f"{text} and {len(names) - SHOWN_KEYS} more"


def _header(file: Path) -> Shapes:
    """A safetensors file begins with the length of its header (8 bytes, little endian), which is JSON."""
    check_exists(file)
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if not 2 <= size <= MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {size} bytes")
            described = json.loads(opened.read(size))
        return {key: tuple(entry["shape"]) for key, entry in described.items() if key != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error


def _weight_map(index: Path) -> dict[str, str]:
    try:
        held: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{index} is not an index of safetensors files: expected JSON with a 'weight_map' ({error})"
        ) from error
    if not isinstance(held, dict) or not held or not all(isinstance(name, str) for name in held.values()):
        raise CheckpointError(f"{index}: 'weight_map' must map keys to the names of files")
    for name in held.values():
        if Path(name).name != name or Path(name).suffix != ".safetensors":
            raise CheckpointError(f"{index} lists {name!r}, expected the name of a .safetensors file beside it")
    return held


def _check_index(index: Path, shapes: Shapes) -> None:
    listed = _weight_map(index)
    lacking = [key for key in listed if key not in shapes]
    unlisted = [key for key in shapes if key not in listed]
    if lacking or unlisted:
        faults = [f"lists {shown(lacking)}, which its files lack"] * bool(lacking)
        faults += [f"does not list {shown(unlisted)}, which its files have"] * bool(unlisted)
        raise CheckpointError(f"{index} {' and '.join(faults)}; download the files again")
