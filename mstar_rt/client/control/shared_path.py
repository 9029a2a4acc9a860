"""`SharedPath`: whether a session's images go through shared memory, as the robot asks and as the server answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mstar_rt.client.control.robot_schema import CameraSchema
from mstar_rt.client.control.shared_slots import SharedSlots, Slot, is_loopback
from mstar_rt.errors import FailedPrecondition
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2

AUTO: Literal["auto"] = "auto"


class SharedPath:
    """`in_use`: on the present connection. `refused`: why not, though it was wanted; "" where nothing is in the way.

    Raises:  FailedPrecondition: it must be used and cannot be.
    """

    def __init__(self, wanted: bool | Literal["auto"], address: str, cameras: Sequence[CameraSchema]) -> None:
        self.in_use = False
        self.refused = ""
        self._must = wanted is True
        self._slots: SharedSlots | None = None
        if wanted is False or not (cameras or self._must):
            return
        if not is_loopback(address):
            self._refuse(f"the server at {address} is not on this machine")
            return
        try:
            self._slots = SharedSlots(cameras)
        except FailedPrecondition as error:
            self._refuse(str(error))

    def offer(self) -> wire.SharedMemoryOffer | None:
        """For a new connection: what the last one has not answered is not read any more."""
        self.in_use = False
        if self._slots is None:
            return None
        self._slots.give_back_all()
        return self._slots.offer

    def answered(self, opened: wire.ControlOpened) -> None:
        """Raises:  FailedPrecondition: it must be used, and the server does not."""
        if self._slots is None:
            return
        self.in_use = opened.shared_memory
        self.refused = ""
        if not self.in_use:
            self._refuse(opened.shared_memory_refused.message or "the server knows no shared memory")

    def take(self, seq: int) -> Slot | None:
        """For the images of an observation; None: they travel as bytes."""
        return self._slots.take(seq) if self.in_use and self._slots is not None else None

    def give_back(self, seq: int | None) -> None:
        """It is known what became of this observation."""
        if self._slots is not None and seq is not None:
            self._slots.give_back(seq)

    def read(self, ref: tensor_pb2.SharedMemoryRef) -> bytes:
        """What a message that is not answered yet refers to."""
        assert self._slots is not None, "a reference belongs to slots"
        return self._slots.read(ref)

    def close(self) -> None:
        self.in_use = False
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def _refuse(self, why: str) -> None:
        self.refused = why
        if self._must:
            raise FailedPrecondition(
                f"shared memory is asked for and cannot be used: {why}; leave shared_memory out to send bytes instead"
            )
