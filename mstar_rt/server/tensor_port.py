"""What the server asks of the tensor plane: requests' inputs in, copies of emissions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mstar_rt.message import Release, TensorRef
from mstar_rt.model.spec import dtype_name
from mstar_rt.transport.tensor_plane import TensorPlane

Readers = Mapping[str, Sequence[str]]
"""Addresses of the workers that may read each input."""


class TensorPort:
    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane

    def put_all(self, tensors: Mapping[str, np.ndarray], readers: Readers) -> dict[str, TensorRef]:
        """References to copies of `tensors`, each held by every one of its readers; all or none. What nobody
        reads is left out.

        Raises:  SharedMemoryExhausted: no room, nothing is held.
        """
        refs: dict[str, TensorRef] = {}
        try:
            for name, array in tensors.items():
                if consumers := readers.get(name, ()):
                    data = np.ascontiguousarray(array)
                    refs[name] = self._plane.put(dtype_name(data.dtype), data.shape, data, consumers)
        except BaseException:
            self.withdraw(refs, readers)
            raise
        return refs

    def withdraw(self, refs: Mapping[str, TensorRef], readers: Readers) -> None:
        """Let go on behalf of readers who may never have been told of these tensors, and will not read them
        any more.
        """
        for name, ref in refs.items():
            if ref.segment is not None:
                for consumer in readers[name]:
                    self._plane.on_release(Release(consumer, [ref.segment.block_id]))

    def take(self, ref: TensorRef) -> bytes:
        """The tensor's bytes, copied, so that its memory is free whatever the client does."""
        try:
            return bytes(self._plane.content(ref))
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
