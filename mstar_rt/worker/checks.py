"""Holds what nodes give against what the model declares; for workers with `check_outputs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mstar_rt.errors import Internal, MstarError
from mstar_rt.model import NodeResult, ServedModel, TensorSpec


class OutputChecks:
    """The specifications of one model, found once."""

    def __init__(self, model: ServedModel) -> None:
        self._of_output = dict(model.node_outputs)
        self._of_emission: dict[tuple[str, str], list[TensorSpec]] = {}
        for task in model.tasks:
            for walk in task.walks:
                for spec in task.outputs:
                    self._of_emission.setdefault((walk, spec.name), []).append(spec)

    def check_result(self, node: str, result: NodeResult) -> MstarError | None:
        """What is wrong with the outputs of a node: NaN or infinity, or a specification that they do not fit."""
        sizes: dict[str, int] = {}
        for slot, value in result.outputs.items():
            fault = _fault(value) or _misfit(self._of_output.get(f"{node}.{slot}"), value, sizes)
            if fault is not None:
                return Internal(f"node {node!r} gave an output {slot!r} that {fault}")
        return None

    def check_emission(self, walk: str, name: str, value: torch.Tensor) -> MstarError | None:
        """What is wrong with a value for the client. Tasks that share a walk may declare it differently: one of their
        specifications must fit."""
        faults = [_misfit(spec, value, {}) for spec in self._of_emission.get((walk, name), ())]
        if faults and None not in faults:
            return Internal(f"walk {walk!r} emits {name!r}, which {faults[0]}")
        return None


def _fault(value: Any) -> str | None:
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, expected a tensor"
    if value.is_floating_point() and not torch.isfinite(value).all():
        return "holds NaN or infinity"
    return None


def _misfit(spec: TensorSpec | None, value: torch.Tensor, sizes: dict[str, int]) -> str | None:
    """How `value` differs from `spec`; `sizes` collects those of symbols over the outputs of one call."""
    if spec is None:
        return None
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in spec.dtypes:
        return f"has dtype {dtype}, expected {' or '.join(spec.dtypes)}"
    if spec.optional and not value.numel():
        return None  # not asked for
    if value.ndim != len(spec.shape) or not _fits(spec.shape, value.shape, sizes):
        return f"has shape {list(value.shape)}, expected {spec.shape_text(sizes)}"
    limits = dict(spec.max_sizes)
    for size, want in zip(value.shape, spec.shape, strict=True):
        if isinstance(want, str) and size > limits.get(want, size):
            return f"has {want} = {size}, expected at most {limits[want]}"
    return _too_large(spec, value)


def _fits(shape: Iterable[int | str], sizes_given: Iterable[int], sizes: dict[str, int]) -> bool:
    for want, size in zip(shape, sizes_given, strict=True):
        if isinstance(want, int):
            expected: int | None = want
        elif want.endswith("-1"):
            known: Mapping[str, int] = sizes
            expected = known[want.removesuffix("-1")] - 1 if want.removesuffix("-1") in known else None
        else:
            expected = sizes.setdefault(want, size)
        if expected is not None and size != expected:
            return False
    return True


def _too_large(spec: TensorSpec, value: torch.Tensor) -> str | None:
    if spec.max_abs is None or not value.is_floating_point() or not value.numel():
        return None
    largest = float(value.abs().max())
    if largest > spec.max_abs:
        return f"holds values up to {largest:g}, expected at most {spec.max_abs:g} {spec.units}".rstrip()
    return None
