"""gRPC failures to mstar_rt.errors, with the server's sentence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from mstar_rt.errors import (
    ERRORS_BY_CODE,
    Cancelled,
    DeadlineExceeded,
    Internal,
    MstarError,
    ResourceExhausted,
    Unavailable,
)
from mstar_rt.protos import request_pb2

ERROR_KEY = "mstar-error-bin"

_BROKEN_CONNECTION = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""When the server's own details are missing: it has never seen the call, or its answer was lost."""

_CANCELLED_HERE = re.compile("Locally cancelled by application!|Channel closed!")
"""grpc's words for a call that this side has ended, by itself or with its channel."""

_TOO_LARGE = re.compile(r"larger than max \((\d+) vs\. (\d+)\)")


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Raise what a call inside fails with as an MstarError; the request id is a note of the exception."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_call(error, address) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _cancelled_here(address) from None  # grpc.aio says so of a call, too, and the task goes on


def error_from_call(error: Any, address: str) -> MstarError:
    """`error` is what grpc or grpc.aio raised: it has code, details and trailing metadata."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            return error_from_detail(request_pb2.ErrorDetail.FromString(value))
    code, details = error.code(), error.details() or ""
    if code in _BROKEN_CONNECTION:
        return Unavailable(f"no answer from the server at {address}: {details}")
    if code is grpc.StatusCode.CANCELLED and _CANCELLED_HERE.search(details):
        return _cancelled_here(address)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"the server at {address} did not answer within the time of the call: give it more")
    if too_large := _TOO_LARGE.search(details):
        size, limit = too_large.groups()
        return ResourceExhausted(
            f"the message has {size} bytes, at most {limit} are accepted: send fewer frames, or as JPEG"
        )
    return ERRORS_BY_CODE.get(code.name, Internal)(details or f"the call ended with {code.name}")


def _cancelled_here(address: str) -> Cancelled:
    return Cancelled(f"the call to the server at {address} was cancelled by this client: call again for an answer")


def error_from_detail(detail: request_pb2.ErrorDetail) -> MstarError:
    error = ERRORS_BY_CODE.get(detail.code, Internal)(detail.message)
    error.add_note(f"request id {detail.request_id}")
    if detail.HasField("retry_after_ms"):
        error.retry_after_s = detail.retry_after_ms / 1e3
    return error
