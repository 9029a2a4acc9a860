"""Reading weights from files and putting them into modules, strictly.

A file is either used whole or refused with a `CheckpointError` that names the file and the keys. Nothing here
unpickles: published `.pt` files are read with torch's weights-only loader, memory-mapped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.weight_shapes import check_exists, in_sections, safetensors_files, safetensors_shapes, shown

Weights = dict[str, torch.Tensor]


def read_torch_sections(path: Path, sections: Sequence[str]) -> dict[str, Weights]:
    """The named dictionaries of tensors in a `.pt` file; what else the file holds stays on disk.

    Raises: CheckpointError: no such file, not a zip-format torch file, not only tensors, or a section is missing.
    """
    content = _read_torch(path)
    return {section: _section(path, content, section) for section in sections}


def read_torch_weights(path: Path) -> Weights:
    """Every tensor of a torch file that is one dictionary of them, as `pytorch_model.bin` is.

    Raises: CheckpointError: no such file, not a zip-format torch file, or not only tensors.
    """
    return _tensors(path, "weights", _read_torch(path))


def _read_torch(path: Path) -> object:
    check_exists(path)
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not a torch weights file (a zip archive); re-save it with torch.save")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the loader raises many kinds for one fault: the file is not plain weights
        raise CheckpointError(
            f"{path} is damaged or holds more than tensors and plain containers ({type(error).__name__}), which is not "
            "read; re-save its state dictionaries alone"
        ) from error


def read_safetensors(path: Path) -> Weights:
    """Every tensor of a safetensors checkpoint: a file, the index of several, or a folder with either.

    Raises: CheckpointError: a file is missing or damaged, or an index does not fit its files.
    """
    safetensors_shapes(path)
    tensors: Weights = {}
    for file in safetensors_files(path):
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
    return tensors


def read_safetensors_sections(path: Path, sections: Sequence[str]) -> dict[str, Weights]:
    """A safetensors checkpoint whose keys are `<section>.<key>`, split by section; other sections are refused."""
    return in_sections(read_safetensors(path), sections, path)


def without_prefixes(weights: Mapping[str, torch.Tensor], prefixes: Sequence[str], where: str) -> Weights:
    """The weights with any leading run of `prefixes` (each ends in a dot) taken off their keys.

    Raises: CheckpointError: two keys become one.
    """
    stripped: Weights = {}
    for key, tensor in weights.items():
        name = key
        while (prefix := next((p for p in prefixes if name.startswith(p)), None)) is not None:
            name = name.removeprefix(prefix)
        if name in stripped:
            raise CheckpointError(f"{where} has {name!r} twice, under different prefixes; keep one")
        stripped[name] = tensor
    return stripped


Module = TypeVar("Module", bound=nn.Module)


class Rows(NamedTuple):
    """Some of the rows (dimension 0) of a parameter, which a file holds under one key."""

    key: str
    num_rows: int


Spelling = Callable[[str], Sequence[str] | Sequence[Rows]]
"""Under which keys a file holds a parameter; keys alone are equal parts along dimension 0."""


def as_named(key: str) -> tuple[str, ...]:
    """The spelling of a file that names every parameter as the module does."""
    return (key,)


def load_strict(
    module: Module,
    weights: Mapping[str, torch.Tensor],
    *,
    where: str,
    device: str,
    dtype: torch.dtype,
    spelling: Spelling = as_named,
) -> Module:
    """Replace all parameters of `module` (which may be on the meta device) by copies of `weights`.

    Args:    where: the file and section, for messages.
             spelling: the keys under which the file holds a parameter.
    Raises:  CheckpointError: a missing key, an unknown key, a tensor of another shape or not of floating point; nothing
             was loaded then.
    """
    expected = {key: shapes_in_file(spelling(key), tensor) for key, tensor in module.state_dict().items()}
    shapes = {name: shape for parts in expected.values() for name, shape in parts.items()}
    missing = [name for name in shapes if name not in weights]
    unknown = [name for name in weights if name not in shapes]
    if missing or unknown:
        faults = [f"lacks {shown(missing)}"] * bool(missing) + [f"has unknown keys {shown(unknown)}"] * bool(unknown)
        raise CheckpointError(f"{where} {' and '.join(faults)}; the weights must fit the configured model exactly")
    for name, shape in shapes.items():
        if list(weights[name].shape) != shape:
            raise CheckpointError(
                f"{where}: {name!r} has shape {list(weights[name].shape)}, expected {shape} "
                "from the configured dimensions"
            )
        if not weights[name].is_floating_point():
            raise CheckpointError(f"{where}: {name!r} has dtype {weights[name].dtype}, expected floating point")
    copies = {
        key: _joined([weights[name] for name in parts]).to(device=device, dtype=dtype, copy=True)
        for key, parts in expected.items()
    }
    broken = [name for key, tensor in copies.items() if not torch.isfinite(tensor).all() for name in expected[key]]
    if broken:
        raise CheckpointError(f"{where} has NaN or infinity in {shown(broken)}; the file is damaged or training failed")
    module.load_state_dict(copies, assign=True)
    return module


def shapes_in_file(spelled: Sequence[str] | Sequence[Rows], parameter: torch.Tensor) -> dict[str, list[int]]:
    """The shape under each key of a file that holds a parameter so, in the order of its rows."""
    if len(spelled) == 1 and isinstance(spelled[0], str):
        return {spelled[0]: list(parameter.shape)}
    num_rows, *rest = parameter.shape
    parts = [Rows(part, num_rows // len(spelled)) if isinstance(part, str) else part for part in spelled]
    assert sum(part.num_rows for part in parts) == num_rows, f"a parameter of {num_rows} rows is not {parts}"
    return {part.key: [part.num_rows, *rest] for part in parts}


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _section(path: Path, content: object, section: str) -> Weights:
    if not isinstance(content, Mapping) or section not in content:
        held = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(f"{path} lacks {section!r}, expected a dictionary with it; found: {held}")
    return _tensors(path, section, content[section])


def _tensors(path: Path, what: str, weights: object) -> Weights:
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{path}: {what!r} must be a dictionary of tensors, got {type(weights).__name__}")
    for key, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path}: {what}[{key!r}] must be a tensor, got {type(tensor).__name__}")
    return dict(weights)
