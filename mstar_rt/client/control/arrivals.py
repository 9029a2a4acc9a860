"""What the server says, off the wire and checked."""

from __future__ import annotations

import numpy as np

from mstar_rt.client.control.results import ControlEvent
from mstar_rt.client.failures import error_from_detail
from mstar_rt.errors import InvalidArgument, MstarError
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor

UNANSWERED = frozenset({"dropped_stale", "dropped_late", "dropped_epoch", "failed", "not_due"})
"""Events after which no chunk comes for their observation."""

_KINDS = {number: name.removeprefix("KIND_").lower() for name, number in wire.ControlEvent.Kind.items()}


def actions_from(chunk: wire.ActionChunk, action_size: int) -> np.ndarray:
    """[n, A], n >= 1, read-only.

    Raises:  InvalidArgument: these are no actions that a robot should execute.
    """
    actions = array_from_tensor(chunk.actions, "actions")
    if actions.dtype.kind != "f" or actions.ndim != 2 or actions.shape[1] != action_size or not len(actions):
        shown = f"{actions.dtype} of shape {list(actions.shape)}"
        raise InvalidArgument(f"the chunk is {shown}, expected floating [n, {action_size}]")
    if not np.isfinite(actions).all():
        raise InvalidArgument("the chunk holds NaN or infinity: none of it is executed")
    return actions


def event_from(message: wire.ControlEvent) -> tuple[ControlEvent, MstarError | None]:
    """A kind that a newer server knows is "unknown"."""
    error = error_from_detail(message.detail) if message.HasField("detail") else None
    event = ControlEvent(
        kind=_KINDS.get(message.kind, "unknown"),
        seq=message.seq if message.HasField("seq") else None,
        epoch=message.epoch,
        detail="" if error is None else str(error),
        replaced_by=message.replaced_by if message.HasField("replaced_by") else None,
    )
    return event, error
