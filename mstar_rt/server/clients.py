"""Whom a call counts for: limits are per client, and one that says who it is gets no more by connecting twice."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

_name: ContextVar[str] = ContextVar("client name", default="")

ALTERNATIVE_NAME, COMMON_NAME = "x509_subject_alternative_name", "x509_common_name"
MAX_NAME = 64


class Stream(Protocol):
    def peer(self) -> str: ...


def set_client_name(name: str) -> None:
    """For this call: its handler runs in the same task."""
    _name.set(name)


def client_name(stream: Stream) -> str:
    """The name of its token, or else of its certificate, or else the address of its connection. The first two hold no
    colon, an address always does."""
    return _name.get() or stream.peer()


def certificate_name(auth_context: Mapping[str, Any]) -> str:
    """Of a client's certificate that has been checked; "" without one."""
    for kind in (ALTERNATIVE_NAME, COMMON_NAME):
        for value in auth_context.get(kind, ()):
            return str(value.decode(errors="replace")).replace(":", "_")[:MAX_NAME]
    return ""
