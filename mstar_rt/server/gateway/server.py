"""The port of the gateway: uvicorn on the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mstar_rt.server.binding import address_text, bound_socket
from mstar_rt.server.clients import peercert_name
from mstar_rt.server.gateway.app import CERTIFICATE

PORT = "http_port"
IDLE_S = 60
"""For how long a connection is kept for the next request."""
FIRST_REQUEST_S = 10.0
MAX_HEAD_BYTES = 16 << 10
KEEPALIVE_S, PROBE_EVERY_S, NUM_PROBES = 10, 5, 4
"""A machine that is gone without a word is found in half a minute."""
STUCK_MS = 30_000
"""So is a client that takes nothing any more, although there is something for it."""


class Gateway:
    """`address` is the base of the URLs that clients use. `port` 0 takes a free one."""

    def __init__(self, app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.address = ""
        self.listening = asyncio.Event()
        self._host = host
        self._port = port
        self._tls = tls
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # what happens to a call is in our own log
                access_log=False,
                server_header=False,
                proxy_headers=False,  # whom a call counts for is not for the client to say
                timeout_keep_alive=IDLE_S,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ),
            self.listening,
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"OpenAI clients on {self.address}"

    async def start(self) -> None:
        """Raises:  FailedPrecondition: the port is in use.  ConfigError: it cannot be listened on."""
        sock = await bound_socket(self._host, self._port, PORT)
        _find_the_gone(sock)
        self.address = (
            f"{'http' if self._tls is None else 'https'}://{address_text(self._host, sock.getsockname()[1])}/v1"
        )
        self._server.config.load()
        self._server.config.ssl = self._tls
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        listening = asyncio.create_task(self.listening.wait())
        await asyncio.wait([self._serving, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self, grace_s: float) -> None:
        """Calls that run are given `grace_s`."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # any number will do
            self._server.should_exit = True
            await asyncio.wait([self._serving])


class _Server(uvicorn.Server):
    """Signals are the deployment's, which stops the gateway with all the rest."""

    def __init__(self, config: uvicorn.Config, listening: asyncio.Event) -> None:
        super().__init__(config)
        self._listening = listening

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


class _Protocol(H11Protocol):
    """Tells the app whose certificate was shown, and closes connections on which nothing is ever asked."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {CERTIFICATE: peercert_name(transport.get_extra_info("peercert"))}
        self.timeout_keep_alive_task = self.loop.call_later(FIRST_REQUEST_S, self.timeout_keep_alive_handler)


def _find_the_gone(sock: socket.socket) -> None:
    """What is accepted on it has the same settings."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_MS)
