"""The port of one openpi dialect. It listens once its policy serves: clients wait for that by themselves."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from mstar_rt.errors import MstarError
from mstar_rt.server.access import Keys
from mstar_rt.server.binding import address_text, bound_socket, listening_error
from mstar_rt.server.clients import peer_name, peercert_name
from mstar_rt.server.compat.mapping import Mapping
from mstar_rt.server.compat.openpi.conversation import Conversation
from mstar_rt.server.compat.robot import ForeignRobot
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.rates import MessageRates

HEALTH_PATH = "/healthz"
KEY_KIND = "api-key"
PORT = "the port of the openpi dialect,"
OPEN_TIMEOUT_S = 10.0
PING_EVERY_S, PONG_TIMEOUT_S = 10.0, 10.0
"""A client that is gone without a word is found within 20 s. openpi's answers on a thread of its own, also while its
program computes."""
CLOSE_TIMEOUT_S = 1.0
MAX_QUEUED = 2
"""Frames that wait for a client that sends on before it is answered: nothing more of it is read meanwhile."""

_log = logging.getLogger(__name__)


class OpenpiServer:
    """`listening` is set once clients can connect. `on_failed` is told if that fails later than `start`."""

    def __init__(
        self,
        mapping: Mapping,
        sessions: ControlSessions,
        rates: MessageRates,
        keys: Keys | None = None,
        tls: ssl.SSLContext | None = None,
        on_failed: Callable[[MstarError], None] = lambda error: None,
    ) -> None:
        self.address = ""
        self.listening = asyncio.Event()
        self._mapping = mapping
        self._sessions = sessions
        self._rates = rates
        self._keys = keys
        self._tls = tls
        self._on_failed = on_failed
        self._server: Server | None = None
        self._listening: asyncio.Task[None] | None = None
        self._conversations: set[Conversation] = set()

    @property
    def name(self) -> str:
        return f"openpi clients on {self.address}"

    async def start(self) -> None:
        dialect = self._mapping.dialect
        sock = await bound_socket(dialect.host, dialect.own_port, PORT)
        host = address_text(dialect.host, sock.getsockname()[1])
        self.address = f"{'ws' if self._tls is None else 'wss'}://{host}"
        self._listening = asyncio.create_task(self._listen(sock))

    async def stop(self, grace_s: float) -> None:
        """What is computed for clients is given `grace_s`."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._server is not None:
            busy = [asyncio.create_task(each.idle.wait()) for each in self._conversations]
            if busy:
                await asyncio.wait(busy, timeout=grace_s)
            for waiting in busy:
                waiting.cancel()
            self._server.close()
            await self._server.wait_closed()

    async def _listen(self, sock: socket.socket) -> None:
        dialect, port = self._mapping.dialect, sock.getsockname()[1]
        try:
            availability = self._sessions.runner.dispatcher.availability
            await availability.wait_for(dialect.model, math.inf)
            if availability.draining:
                return
            self._server = await serve(
                self._converse,
                sock=sock,
                ssl=self._tls,
                compression=None,
                max_size=self._sessions.max_message_bytes,
                max_queue=MAX_QUEUED,
                process_request=self._admit,
                open_timeout=OPEN_TIMEOUT_S,
                ping_interval=PING_EVERY_S,
                ping_timeout=PONG_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                server_header=None,
            )
            self.listening.set()
        except OSError as error:
            self._on_failed(listening_error(error, dialect.host, port, PORT))
        finally:
            if self._server is None:
                sock.close()

    # ---- one connection

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Before the handshake. Any path is a websocket, but one; `None` lets the client in."""
        if request.path.partition("?")[0] == HEALTH_PATH:
            return self._health(connection)
        if self._client(connection, request) is None:
            _log.info("a client at %s has no key of this server", _peer(connection))
            return connection.respond(
                HTTPStatus.UNAUTHORIZED,
                "this server lets nobody in without one of its keys: give the client its api_key\n",
            )
        return None

    def _health(self, connection: ServerConnection) -> Response:
        dispatcher = self._sessions.runner.dispatcher
        if dispatcher.draining or not dispatcher.serving[self._mapping.dialect.model].serving:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "the policy does not serve\n")
        return connection.respond(HTTPStatus.OK, "OK\n")

    def _client(self, connection: ServerConnection, request: Request) -> str | None:
        """Whom its messages count for: its key, its certificate or its address, by name; None: it has no right key."""
        if self._keys is None:
            return _certificate(connection) or _peer(connection)
        kind, _, given = request.headers.get("Authorization", "").strip().partition(" ")
        return self._keys.name_of(given.strip()) if kind.lower() == KEY_KIND else None

    async def _converse(self, connection: ServerConnection) -> None:
        assert connection.request is not None, "the handshake is over"
        client = self._client(connection, connection.request)
        if client is None:
            return  # its key was taken from the file meanwhile
        robot = ForeignRobot(self._sessions, client)
        conversation = Conversation(connection, self._mapping, robot, self._rates, client, self._sessions.clock)
        self._conversations.add(conversation)
        try:
            await conversation.run()
        finally:
            self._conversations.discard(conversation)


def _certificate(connection: ServerConnection) -> str:
    """The name of the client's certificate that TLS has checked; "" without one."""
    return peercert_name(connection.transport.get_extra_info("peercert"))


def _peer(connection: ServerConnection) -> str:
    return peer_name(connection.remote_address)
