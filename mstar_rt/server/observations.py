"""What a planner's session has observed: the newest observation alone, or a history that the runtime keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import world_model_pb2 as wire

NOTHING_OBSERVED = "the session has no observation: send `observe` first, or a context with the command"


@dataclass
class View:
    """What a command sees: tensors that go with its request, and the id of the observation they are from."""

    tensors: Mapping[str, np.ndarray]
    observation_id: int | None


@dataclass
class _Observation:
    message_id: int
    tensors: dict[str, np.ndarray]
    used: bool = False


class NewestObservation:
    """One slot, overwritten: the newest wins."""

    def __init__(self) -> None:
        self._slot: _Observation | None = None

    def check(self, message: wire.Observe) -> None:
        """Raises:  InvalidArgument: it says what only a history takes."""
        for field in ("executed_action", "follows"):
            if message.HasField(field):
                raise InvalidArgument(
                    f"the observation has {field}, but this session keeps no history: open one with context_window, "
                    "or send past frames and actions in the context"
                )

    def replace(self, message_id: int, tensors: dict[str, np.ndarray]) -> int | None:
        """Returns the id of the observation that is dropped: replaced before anything used it."""
        before, self._slot = self._slot, _Observation(message_id, tensors)
        return None if before is None or before.used else before.message_id

    def view(self) -> View:
        """Raises:  FailedPrecondition: there is none."""
        if self._slot is None:
            raise FailedPrecondition(NOTHING_OBSERVED)
        self._slot.used = True
        return View(self._slot.tensors, self._slot.message_id)


class ObservationHistory:
    """The runtime keeps the frames; this knows which is the newest."""

    def __init__(self) -> None:
        self._newest: int | None = None

    def check(self, message: wire.Observe) -> None:
        """Raises:  FailedPrecondition: it follows another one than the newest."""
        if message.HasField("follows") and message.follows != self._newest:
            newest = "empty" if self._newest is None else f"at observation {self._newest}"
            raise FailedPrecondition(
                f"the observation follows {message.follows}, but the history is {newest}: observe again from there"
            )

    def append(self, message_id: int) -> None:
        self._newest = message_id

    def view(self) -> View:
        """Raises:  FailedPrecondition: there is none."""
        if self._newest is None:
            raise FailedPrecondition(NOTHING_OBSERVED)
        return View({}, self._newest)
