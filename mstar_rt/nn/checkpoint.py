"""Reading weights from files and putting them into modules, strictly.

A file is either used whole or refused with a `CheckpointError` that names the file and the keys. Nothing here
unpickles: published `.pt` files are read with torch's weights-only loader, memory-mapped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from mstar_rt.errors import CheckpointError

SHOWN_KEYS = 3
Weights = dict[str, torch.Tensor]


def read_torch_sections(path: Path, sections: Sequence[str]) -> dict[str, Weights]:
    """The named dictionaries of tensors in a `.pt` file; what else the file holds stays on disk.

    Raises: CheckpointError: no such file, not a zip-format torch file, not only tensors, or a section is missing.
    """
    _check_exists(path)
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
    """A safetensors file whose keys are `<section>.<key>`, split by section; other sections are refused."""
    _check_exists(path)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
    split: dict[str, Weights] = {section: {} for section in sections}
    strangers = []
    for key, tensor in tensors.items():
        section, _, rest = key.partition(".")
        if section in split:
            split[section][rest] = tensor
        else:
            strangers.append(key)
    if strangers:
        raise CheckpointError(f"{path} has unknown keys {_shown(strangers)}; keys start with {' or '.join(sections)}")
    return split


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


def load_strict(
    module: Module, weights: Mapping[str, torch.Tensor], *, where: str, device: str, dtype: torch.dtype
) -> Module:
    """Replace all parameters of `module` (which may be on the meta device) by copies of `weights`.

    Args:    where: the file and section, for messages.
    Raises:  CheckpointError: a missing key, an unknown key, or a tensor of another shape; nothing was loaded then.
    """
    expected = module.state_dict()
    missing = [key for key in expected if key not in weights]
    unknown = [key for key in weights if key not in expected]
    if missing or unknown:
        faults = [f"lacks {_shown(missing)}"] * bool(missing) + [f"has unknown keys {_shown(unknown)}"] * bool(unknown)
        raise CheckpointError(f"{where} {' and '.join(faults)}; the weights must fit the configured model exactly")
    for key, tensor in expected.items():
        if weights[key].shape != tensor.shape:
            raise CheckpointError(
                f"{where}: {key!r} has shape {list(weights[key].shape)}, expected {list(tensor.shape)} "
                "from the configured dimensions"
            )
    copies = {key: weights[key].to(device=device, dtype=dtype, copy=True) for key in expected}
    module.load_state_dict(copies, assign=True)
    return module


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


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"there is no weights file at {path}; check the path or download the file first")


def _shown(keys: Iterable[str]) -> str:
    names = sorted(keys)
    shown = ", ".join(repr(name) for name in names[:SHOWN_KEYS])
    return shown if len(names) <= SHOWN_KEYS else f"{shown} and {len(names) - SHOWN_KEYS} more"
