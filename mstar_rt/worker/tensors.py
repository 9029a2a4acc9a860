"""Between torch tensors on a device and what the tensor plane carries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import TensorRef
from mstar_rt.transport import TensorPlane


def receive_tensor(plane: TensorPlane, ref: TensorRef, device: str) -> torch.Tensor:
    """Copy a tensor out of shared memory onto `device` and let go of the block."""
    try:
        if ref.dtype != "bfloat16" and not hasattr(torch, ref.dtype):
            raise InvalidArgument(f"tensors of dtype {ref.dtype} cannot be served")
        copied = torch.from_numpy(np.array(plane.view(ref)))
    finally:
        plane.release(ref)
    return (copied.view(torch.bfloat16) if ref.dtype == "bfloat16" else copied).to(device)


def send_tensor(plane: TensorPlane, value: torch.Tensor | Sequence[torch.Tensor], consumer: str) -> TensorRef:
    """Place a tensor where `consumer` can read it; a collected list is stacked along a new first dimension."""
    tensor = value if isinstance(value, torch.Tensor) else torch.stack(list(value))
    host = tensor.detach().to("cpu").contiguous()
    shape = tuple(host.shape)
    if host.dtype == torch.bfloat16:
        return plane.put("bfloat16", shape, host.view(torch.uint16).numpy(), [consumer])
    array = host.numpy()
    return plane.put(array.dtype.name, shape, array, [consumer])
