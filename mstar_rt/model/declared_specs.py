"""Whether the parts of a declaration make sense by themselves: tensors, parameters and caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mstar_rt.errors import GraphError, InvalidArgument, nearest
from mstar_rt.model.spec import ParamSpec, TensorSpec

if TYPE_CHECKING:
    from mstar_rt.model.served import KVSpec

DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""What goes over the wire."""
NODE_DTYPES = (*DTYPES, "uint32", "uint64")
"""What goes from node to node."""
PARAM_KINDS = ("bool", "int", "float", "str", "floats")
# A limit of another kind of parameter would be declared and not hold.
KINDS_WITH = {
    "minimum": ("int", "float", "floats"), "maximum": ("int", "float", "floats"), "choices": ("str",),
    "length": ("floats",),
}  # fmt: skip
KV_SIZES = ("num_layers", "num_kv_heads", "head_dim", "page_size", "max_sequence_tokens")


def named_once(names: Sequence[str], kind: str, where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{where} has two {kind}s of the name {name!r}, every {kind} needs a name of its own")


def check_tensor(spec: TensorSpec, where: str, dtypes: Sequence[str] = DTYPES) -> None:
    """`where` names the tensor."""
    if isinstance(spec.dtypes, str) or not spec.dtypes:
        raise GraphError(f"{where}: its dtypes are {spec.dtypes!r}, expected a tuple of at least one name")
    for dtype in spec.dtypes:
        if dtype not in dtypes:
            raise GraphError(f"{where} has dtype {dtype!r}, {nearest(str(dtype), dtypes)}")
    if isinstance(spec.shape, str):
        raise GraphError(f"{where} has shape {spec.shape!r}, expected a tuple of sizes and symbols")
    for size in spec.shape:
        if not isinstance(size, str) and not _is_size(size):
            raise GraphError(f"{where} has a size {size!r}, expected an integer of at least 1 or a symbol")
    symbols = [size for size in spec.shape if isinstance(size, str)]
    for symbol, limit in spec.max_sizes:
        if symbol not in symbols:
            raise GraphError(f"{where} limits {symbol!r}, which its shape does not have, {nearest(symbol, symbols)}")
        if not _is_size(limit):
            raise GraphError(f"{where} limits {symbol!r} to {limit!r}, expected an integer of at least 1")


def check_tensors_in_order(specs: Sequence[TensorSpec], where: str) -> None:
    """The inputs of a task: "T-1" needs a tensor before it that has T, and dtypes are those that numpy has."""
    seen: list[str] = []
    for spec in specs:
        if "bfloat16" in spec.dtypes:
            raise GraphError(
                f"{where}: input {spec.name!r} has dtype 'bfloat16', which arrives as 'float32', take that"
            )
        for size in spec.shape:
            symbol = size.removesuffix("-1") if isinstance(size, str) else ""
            if symbol != size and symbol and symbol not in seen:
                raise GraphError(
                    f"{where}: input {spec.name!r} has a size {size!r}, but no input before it has {symbol!r}, "
                    f"{nearest(symbol, seen)}"
                )
            if symbol:
                seen.append(symbol)


def check_param(spec: ParamSpec, task: str) -> None:
    """`task` says where the parameter is."""
    where = f"{task}, parameter {spec.name!r}"
    if spec.kind not in PARAM_KINDS:
        raise GraphError(f"{where} has kind {spec.kind!r}, {nearest(str(spec.kind), PARAM_KINDS)}")
    for limit, kinds in KINDS_WITH.items():
        if getattr(spec, limit) not in (None, ()) and spec.kind not in kinds:
            raise GraphError(f"{where} is of kind {spec.kind!r} and has {limit}, which only {' and '.join(kinds)} have")
    if isinstance(spec.choices, str):
        raise GraphError(f"{where} has the choices {spec.choices!r}, expected a tuple of strings")
    if spec.minimum is not None and spec.maximum is not None and spec.minimum > spec.maximum:
        raise GraphError(f"{where} has minimum {spec.minimum} over its maximum {spec.maximum}, no value fits")
    if spec.name == "seed" and spec.kind != "int":
        raise GraphError(f"{where} is of kind {spec.kind!r}, but it seeds the randomness of nodes, expected 'int'")
    if spec.default is not None:
        try:
            spec.check(spec.default, task)
        except InvalidArgument as error:
            raise GraphError(f"{error}, which its own default {spec.default!r} does not fit") from error


def check_cache(spec: KVSpec, where: str) -> None:
    """`where` names the cache."""
    for name in KV_SIZES:
        if not _is_size(getattr(spec, name)):
            raise GraphError(f"{where} has {name} {getattr(spec, name)!r}, expected an integer of at least 1")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
