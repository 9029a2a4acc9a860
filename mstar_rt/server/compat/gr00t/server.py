"""The port of one GR00T dialect: requests of any number of clients, answered beside one another on the event loop.

A ROUTER socket hears nothing of a client that leaves. Its monitor does, by the number of the TCP connection, which
messages carry too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from mstar_rt.errors import InvalidArgument, MstarError, ResourceExhausted
from mstar_rt.server.access import Keys
from mstar_rt.server.answering import error_detail
from mstar_rt.server.binding import address_text, bound_socket, listening_error
from mstar_rt.server.compat.gr00t import codec
from mstar_rt.server.compat.gr00t.peer import Peer
from mstar_rt.server.compat.mapping import Mapping
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.rates import MessageRates

PORT = "the port of the gr00t dialect,"
BACKLOG = 128
MAX_QUEUED = 2
"""Requests of each client that wait inside of ZeroMQ; one that waits for its answers has one."""
MAX_ROUTE = 2
LINGER_MS = 200
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 10_000
"""A client that is gone without a word is found within 15 s; ZeroMQ answers without the client's program."""

_log = logging.getLogger(__name__)


class Gr00tServer:
    def __init__(
        self,
        mapping: Mapping,
        sessions: ControlSessions,
        rates: MessageRates,
        keys: Keys | None = None,
        on_kill: Callable[[], None] = lambda: None,
        on_failed: Callable[[MstarError], None] = lambda error: None,
    ) -> None:
        self.address = ""
        self.listening = asyncio.Event()
        self._mapping = mapping
        self._sessions = sessions
        self._rates = rates
        self._keys = keys
        self._on_kill = on_kill
        self._on_failed = on_failed
        self._context = zmq.asyncio.Context()
        self._router: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None
        self._peers = Peers(self._new_peer)
        self._answering: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        return f"gr00t clients on {self.address}"

    async def start(self) -> None:
        dialect = self._mapping.dialect
        sock = await bound_socket(dialect.host, dialect.own_port, PORT)
        self.address = f"tcp://{address_text(dialect.host, sock.getsockname()[1])}"
        self._tasks.append(asyncio.create_task(self._serve(sock)))

    async def stop(self, grace_s: float) -> None:
        """What is computed for clients is given `grace_s`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        answering = list(self._answering.values())
        if answering:
            await asyncio.wait(answering, timeout=grace_s)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await self._peers.close()
        if self._router is not None:
            self._router.disable_monitor()
            self._router.close(LINGER_MS)
        if self._monitor is not None:
            self._monitor.close(0)
        await asyncio.to_thread(self._context.term)

    async def _serve(self, sock: socket.socket) -> None:
        """A client that is there before the policy serves waits until then, as it does for GR00T's own server."""
        dialect, port = self._mapping.dialect, sock.getsockname()[1]
        try:
            availability = self._sessions.runner.dispatcher.availability
            await availability.wait_for(dialect.model, math.inf)
            self._router = self._listen(sock)
        except OSError as error:
            self._on_failed(listening_error(error, dialect.host, port, PORT))
            return
        finally:
            if self._router is None:
                sock.close()
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._tasks.append(asyncio.create_task(self._watch(self._monitor)))
        self.listening.set()
        await self._receive_all()

    async def _receive_all(self) -> None:
        assert self._router is not None
        while True:
            frames = await self._router.recv_multipart(copy=False)
            try:
                await self._receive(frames)
            except zmq.ZMQError as error:
                _log.info("a gr00t client has gone before its request was read: %s", error)
            except Exception:
                _log.exception("a gr00t client's request was dropped")

    def _listen(self, sock: socket.socket) -> zmq.asyncio.Socket:
        """On a port that is bound already."""
        sock.listen(BACKLOG)
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.MAXMSGSIZE, self._sessions.max_message_bytes)
        router.setsockopt(zmq.RCVHWM, MAX_QUEUED)
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        router.setsockopt(zmq.USE_FD, sock.fileno())
        router.bind("tcp://127.0.0.1:0")  # anything: where it listens is the socket's
        sock.detach()  # it is ZeroMQ's now
        return router

    # ---- one request

    async def _receive(self, frames: list[zmq.Frame]) -> None:
        identity, route, parts = _envelope(frames)
        peer = await self._peers.of(identity, frames[-1])
        if identity in self._answering:
            await self._say(identity, route, _error(ResourceExhausted("the last request is not answered yet: wait")))
            return
        if len(parts) != 1:
            await self._say(identity, route, _error(InvalidArgument(f"the request has {len(parts)} parts, expected 1")))
            return
        task = asyncio.create_task(self._answer(peer, identity, route, parts[0].bytes))
        self._answering[identity] = task
        task.add_done_callback(lambda done: self._forget(identity, done))

    async def _answer(self, peer: Peer, identity: bytes, route: list[bytes], data: bytes) -> None:
        try:
            answer = codec.pack(await peer.answer(data))
        except Exception as error:
            answer = _error(error)
        self._forget(identity, asyncio.current_task())
        await self._say(identity, route, answer)

    def _forget(self, identity: bytes, task: asyncio.Task[None] | None) -> None:
        if self._answering.get(identity) is task:
            del self._answering[identity]

    async def _say(self, identity: bytes, route: list[bytes], answer: bytes) -> None:
        """A client that does not read loses what it is told: nobody waits for it."""
        assert self._router is not None
        try:
            await self._router.send_multipart([identity, *route, answer], zmq.DONTWAIT)
        except zmq.Again:
            _log.info("a gr00t client does not read its answers")

    # ---- clients

    def _new_peer(self, identity: bytes, address: str) -> Peer:
        host = f"[{address}]" if ":" in address else address
        name = f"{'ipv6' if ':' in address else 'ipv4'}:{host}/{identity.hex()[:32]}"
        return Peer(self._mapping, self._sessions, self._rates, self._keys, name, self._on_kill)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())
            identity = self._peers.gone(event["value"])
            if identity is None:
                continue
            if (running := self._answering.pop(identity, None)) is not None:
                running.cancel()
            await self._peers.forget(identity)


class Peers:
    """Clients by their identity, and the TCP connection that each is on."""

    def __init__(self, make: Callable[[bytes, str], Peer]) -> None:
        self._make = make
        self._peers: dict[bytes, Peer] = {}
        self._identities: dict[int, bytes] = {}
        self._replaced: Counter[int] = Counter()

    async def of(self, identity: bytes, frame: zmq.Frame) -> Peer:
        """Whoever sent this. A number that another client had is a new connection: that client is gone."""
        number = int(frame.get(zmq.MessageOption.SRCFD))
        before = self._identities.get(number)
        if before is not None and before != identity:
            self._replaced[number] += 1  # the monitor has yet to say so
            await self.forget(before)
        self._identities[number] = identity
        if identity not in self._peers:
            self._peers[identity] = self._make(identity, str(frame.get("Peer-Address")))
        return self._peers[identity]

    def gone(self, number: int) -> bytes | None:
        """The client whose connection has ended, if it has no other by now."""
        if self._replaced[number]:
            self._replaced[number] -= 1
            return None
        identity = self._identities.pop(number, None)
        return None if identity in self._identities.values() else identity

    async def forget(self, identity: bytes) -> None:
        peer = self._peers.pop(identity, None)
        if peer is not None:
            await peer.close()

    async def close(self) -> None:
        await asyncio.gather(*(self.forget(identity) for identity in list(self._peers)))


def _envelope(frames: list[zmq.Frame]) -> tuple[bytes, list[bytes], list[zmq.Frame]]:
    """Who sent it, what an answer begins with, and what was sent. A REQ client puts an empty frame before its request,
    and maybe a number before that; a DEALER may put nothing.
    """
    rest = frames[1:]
    end = next((i + 1 for i, frame in enumerate(rest[:MAX_ROUTE]) if not len(frame) and len(rest) > 1), 0)
    return frames[0].bytes, [frame.bytes for frame in rest[:end]], rest[end:]


def _error(error: Exception) -> bytes:
    return codec.pack({"error": error_detail(error, new_id("r")).message})
