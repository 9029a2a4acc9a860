"""Errors as OpenAI's API says them: a status, and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from typing import Any

from mstar_rt.errors import DeadlineExceeded, InvalidArgument, MstarError, NotFound
from mstar_rt.server.answering import error_detail

STATUS = {
    "INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401, "NOT_FOUND": 404, "FAILED_PRECONDITION": 400,
    "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "CANCELLED": 499, "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
}  # fmt: skip
TYPES = {401: "authentication_error", 429: "rate_limit_error"}
"""Of what is not the client's fault the type is "server_error", of all else "invalid_request_error"."""


class FieldError(InvalidArgument):
    """A field of the request is wrong; `field` is its path in the JSON, e.g. "messages[0].role", or the name alone of
    one that is there twice."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class HttpError(MstarError):
    """What HTTP has a status of its own for: `status`, and `code` as the API says it. `field`: see FieldError."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class UnknownModel(NotFound):
    """No model of that name writes or speaks here."""


class Refusal:
    """How a call that fails is answered. `headers` say to OpenAI's clients whether and when to try again."""

    def __init__(self, error: Exception, request_id: str) -> None:
        detail = error_detail(error, request_id)
        self.status = error.status if isinstance(error, HttpError) else STATUS.get(detail.code, 500)
        self.headers = {"x-should-retry": "true" if detail.retryable else "false"}
        if detail.HasField("retry_after_ms"):
            self.headers["retry-after-ms"] = str(round(detail.retry_after_ms))
            self.headers["retry-after"] = str(math.ceil(detail.retry_after_ms / 1e3))
        if self.status == 401:
            self.headers["www-authenticate"] = "Bearer"
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        self.body: dict[str, Any] = {
            "error": {
                "message": detail.message,
                "type": kind,
                "param": _field(error),
                "code": _code(error, detail.code),
            }
        }


def _field(error: Exception) -> str | None:
    if isinstance(error, DeadlineExceeded):
        return "budget_ms"  # calls here have no other deadline
    return error.field if isinstance(error, FieldError | HttpError) else None


def _code(error: Exception, code: str) -> str:
    if isinstance(error, UnknownModel):
        return "model_not_found"
    return "invalid_api_key" if code == "UNAUTHENTICATED" else code.lower()
