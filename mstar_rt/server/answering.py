"""How a call ends: every error becomes a gRPC status with one sentence, every call carries its request id."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from mstar_rt.errors import Internal, InvalidArgument, MstarError, sentence
from mstar_rt.protos import request_pb2
from mstar_rt.server.dispatch import new_id

REQUEST_ID_KEY = "mstar-request-id"
ERROR_KEY = "mstar-error-bin"
RETRY_KEY = "retry-after-ms"

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)


class Answering:
    """The body of one RPC, as `async with`; gives its request id. What the body raises ends the call with the
    right status.

    Cancellation passes through: the client has gone and there is nobody to answer.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._request_id = new_id("r")

    async def __aenter__(self) -> str:
        self._context.set_trailing_metadata(((REQUEST_ID_KEY, self._request_id),))
        return self._request_id

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            detail = error_detail(error, self._request_id)
            metadata: list[tuple[str, str | bytes]] = [(REQUEST_ID_KEY, detail.request_id)]
            metadata.append((ERROR_KEY, detail.SerializeToString()))
            if detail.HasField("retry_after_ms"):
                metadata.append((RETRY_KEY, str(round(detail.retry_after_ms))))
            await self._context.abort(grpc.StatusCode[detail.code], detail.message, tuple(metadata))


def error_detail(error: Exception, request_id: str) -> request_pb2.ErrorDetail:
    """What the client is told, and the log too. Anything but an MstarError is a bug of ours: its traceback goes to the
    log, never out.
    """
    if isinstance(error, DecodeError):
        error = InvalidArgument(f"the bytes sent are not a message of this method: {error}")
    if not isinstance(error, MstarError):
        _log.error("request %s failed", request_id, exc_info=error)
        error = Internal(f"the server failed on this request; its log has the cause under {request_id}")
    else:
        _log.info("request %s failed: %s: %s", request_id, error.code, error)
    detail = request_pb2.ErrorDetail(
        code=error.code, message=sentence(error), request_id=request_id, retryable=error.retryable
    )
    if error.retry_after_s is not None:
        detail.retry_after_ms = error.retry_after_s * 1e3
    return detail
