"""What the server asks of the tensor plane: requests' inputs in, copies of emissions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mstar_rt.message import Release, TensorRef
from mstar_rt.transport.tensor_plane import TensorPlane


class TensorPort:
    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane

    def put_all(self, tensors: Mapping[str, np.ndarray], consumers: Sequence[str]) -> dict[str, TensorRef]:
        """References to copies of `tensors`, each held by every one of `consumers`; all or none.

        Raises:  SharedMemoryExhausted: no room, nothing is held.
        """
        refs: dict[str, TensorRef] = {}
        try:
            for name, array in tensors.items():
                data = np.ascontiguousarray(array)
                refs[name] = self._plane.put(data.dtype.name, data.shape, data, consumers)
        except BaseException:
            self.withdraw(refs, consumers)
            raise
        return refs

    def withdraw(self, refs: Mapping[str, TensorRef], consumers: Sequence[str]) -> None:
        """Let go on behalf of consumers who may never have been told of these tensors, and will not read them
        any more.
        """
        block_ids = [ref.segment.block_id for ref in refs.values() if ref.segment is not None]
        for consumer in consumers if block_ids else ():
            self._plane.on_release(Release(consumer, block_ids))

    def take(self, ref: TensorRef) -> bytes:
        """The tensor's bytes, copied, so that its memory is free whatever the client does."""
        try:
            return self._plane.view(ref).tobytes()
        finally:
            self._plane.release(ref)

    def release(self, ref: TensorRef) -> None:
        self._plane.release(ref)

    def on_release(self, record: Release) -> None:
        self._plane.on_release(record)

    def forget(self, address: str) -> None:
        self._plane.forget_peer(address)

    @property
    def num_held_bytes(self) -> int:
        return self._plane.num_held_bytes
