"""Between torch tensors on a device and what the tensor plane carries."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mstar_rt.errors import Internal
from mstar_rt.message import Release, TensorRef
from mstar_rt.transport import TensorPlane

_NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.uint16: "uint16",
    torch.int16: "int16",
    torch.uint32: "uint32",
    torch.int32: "int32",
    torch.uint64: "uint64",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def receive_tensor(plane: TensorPlane, ref: TensorRef, device: str) -> torch.Tensor:
    """Copy a tensor out of shared memory onto `device` and let go of the block."""
    try:
        content = bytearray(plane.content(ref))
    finally:
        if ref.segment is not None:
            plane.release(ref)
    dtype = _DTYPES[ref.dtype]
    copied = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
    if len(ref.shape) != 1:
        copied = copied.view(ref.shape)
    return copied if device == "cpu" else copied.to(device)


def receive_tensors(plane: TensorPlane, refs: Sequence[TensorRef], device: str) -> list[torch.Tensor]:
    """All of them are let go, even if one cannot be read.

    Raises: MstarError: one could not.  MemoryError: nor was there memory for it here.
    """
    received: list[torch.Tensor] = []
    failure: Exception | None = None
    for ref in refs:
        try:
            received.append(receive_tensor(plane, ref, device))
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure
    return received


def send_tensor(plane: TensorPlane, tensor: torch.Tensor, consumers: Sequence[str]) -> TensorRef:
    """Place a tensor where `consumers` can read it."""
    if not isinstance(tensor, torch.Tensor):
        raise Internal(f"a value to send is a {type(tensor).__name__}, expected a tensor")
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise Internal(f"a tensor of dtype {tensor.dtype} cannot be sent, expected bfloat16 or one that numpy has")
    host = tensor.detach() if tensor.requires_grad else tensor
    if not host.is_cpu:
        host = host.cpu()
    host = host.contiguous()
    if name == "bfloat16":
        host = host.view(torch.uint16)
    return plane.put(name, host.shape, host.numpy(), consumers)


def take_back(plane: TensorPlane, ref: TensorRef, consumers: Sequence[str]) -> None:
    """Let go in the name of consumers who will never hear of the tensor."""
    if ref.segment is not None:
        for consumer in consumers:
            plane.on_release(Release(consumer, [ref.segment.block_id]))


def one_tensor(value: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """A collected list is stacked along a new first dimension."""
    return value if isinstance(value, torch.Tensor) else torch.stack(list(value))
