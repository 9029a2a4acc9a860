"""Whom a call counts for: limits are per client, and one that says who it is gets no more by connecting twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def peercert_name(peercert: Mapping[str, Any] | None) -> str:
    """The same, of what Python's TLS says of the certificate."""
    found = peercert or {}
    named = {ALTERNATIVE_NAME: [value.encode() for _, value in found.get("subjectAltName", ())]}
    subject = [pair for part in found.get("subject", ()) for pair in part]
    named[COMMON_NAME] = [value.encode() for name, value in subject if name == "commonName"]
    return certificate_name(named)


def peer_name(address: Sequence[Any]) -> str:
    """Of a socket's address, as gRPC writes it."""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
