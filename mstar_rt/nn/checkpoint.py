"""Reading weights from files and putting them into modules, strictly.

A file is either used whole or refused with a `CheckpointError` that names the file and the keys. Nothing here
unpickles: published `.pt` files are read with torch's weights-only loader, memory-mapped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

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
    check_exists(path)
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not a torch weights file (a zip archive); re-save it with torch.save")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the loader raises many kinds for one fault: the file is not plain weights
        raise CheckpointError(
            f"{path} is damaged or holds more than tensors and plain containers ({type(error).__name__}), which is not "
            "read; re-save its state dictionaries alone"
        ) from error
    return {section: _section(path, content, section) for section in sections}


def read_safetensors_sections(path: Path, sections: Sequence[str]) -> dict[str, Weights]:
    """A safetensors checkpoint whose keys are `<section>.<key>`, split by section; other sections are refused.

    Args: path: a file, the index of several, or a folder with either.
    """
    safetensors_shapes(path)
    tensors: Weights = {}
    for file in safetensors_files(path):
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
    return in_sections(tensors, sections, path)


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
    spelling: Callable[[str], tuple[str, ...]] = as_named,
) -> Module:
    """Replace all parameters of `module` (which may be on the meta device) by copies of `weights`.

    Args:    where: the file and section, for messages.
             spelling: the keys under which the file holds a parameter; several are its equal parts along dimension 0.
    Raises:  CheckpointError: a missing key, an unknown key, a tensor of another shape or not of floating point; nothing
             was loaded then.
    """
    expected = {key: (spelling(key), tensor) for key, tensor in module.state_dict().items()}
    shapes = {name: _part(tensor, len(names)) for names, tensor in expected.values() for name in names}
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
        key: _joined([weights[name] for name in names]).to(device=device, dtype=dtype, copy=True)
        for key, (names, _) in expected.items()
    }
    broken = [key for key, tensor in copies.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise CheckpointError(f"{where} has NaN or infinity in {shown(broken)}; the file is damaged or training failed")
    module.load_state_dict(copies, assign=True)
    return module


def _part(tensor: torch.Tensor, num_parts: int) -> list[int]:
    """The shape of one of a parameter's parts."""
    if num_parts == 1:
        return list(tensor.shape)
    rows, *rest = tensor.shape
    assert rows % num_parts == 0, "a parameter that a file splits has rows for every part"
    return [rows // num_parts, *rest]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _section(path: Path, content: object, section: str) -> Weights:
    if not isinstance(content, Mapping) or section not in content:
        held = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(f"{path} lacks {section!r}, expected a dictionary with it; found: {held}")
    weights = content[section]
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{path}: {section!r} must be a dictionary of tensors, got {type(weights).__name__}")
    for key, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path}: {section}[{key!r}] must be a tensor, got {type(tensor).__name__}")
    return dict(weights)
