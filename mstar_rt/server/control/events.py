"""The small messages of a control session."""

from __future__ import annotations

from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2
from mstar_rt.server.answering import error_detail

Kind = wire.ControlEvent.Kind

DROPPED_STALE = wire.ControlEvent.KIND_DROPPED_STALE
DROPPED_LATE = wire.ControlEvent.KIND_DROPPED_LATE
DROPPED_EPOCH = wire.ControlEvent.KIND_DROPPED_EPOCH
LATE = wire.ControlEvent.KIND_LATE
NOT_DUE = wire.ControlEvent.KIND_NOT_DUE
RECOVERING = wire.ControlEvent.KIND_RECOVERING
FAILED = wire.ControlEvent.KIND_FAILED
RESET_DONE = wire.ControlEvent.KIND_RESET_DONE


def event(
    kind: Kind,
    epoch: int,
    seq: int | None = None,
    *,
    replaced_by: int | None = None,
    detail: request_pb2.ErrorDetail | None = None,
) -> wire.ControlResponse:
    """`epoch` is the one in force, whatever the observation says."""
    message = wire.ControlEvent(kind=kind, epoch=epoch, seq=seq, replaced_by=replaced_by, detail=detail)
    return wire.ControlResponse(event=message)


def failed(error: Exception, epoch: int, seq: int, request_id: str) -> wire.ControlResponse:
    """An observation that has no chunk, and why; the session goes on."""
    return event(FAILED, epoch, seq, detail=error_detail(error, request_id))
