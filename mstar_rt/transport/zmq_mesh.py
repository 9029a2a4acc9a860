"""The control plane between processes: ZeroMQ over Unix sockets in a deployment's private directory.

Every endpoint binds one PULL socket and opens one PUSH socket per peer it talks to. Endpoints of the same
mesh object (server and conductor in one process) hand each other the same bytes without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from mstar_rt.errors import FailedPrecondition, Unavailable
from mstar_rt.message import Message, encode
from mstar_rt.transport.deployment_directory import DeploymentDirectory, lock_file
from mstar_rt.transport.endpoint import MAX_DRAIN, Envelope, EnvelopeOpener, check_address, frame_header

RECONNECT_MS = 20
"""How often a missing peer is tried again; each try costs 30 us of processor time."""

LINGER_MS = 500
"""How long closing the mesh waits for messages that a peer has not taken yet."""

_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers: ZeroMQ's own are enumerations, which compute as slowly as it answers."""


class ZmqMesh:
    """One process's access to its deployment's control plane."""

    def __init__(self, directory: Path, owned: DeploymentDirectory | None) -> None:
        self.directory = directory
        self._owned = owned
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._local: dict[str, ZmqEndpoint] = {}
        self._closed = False

    @classmethod
    def create(cls, base: Path | None = None) -> ZmqMesh:
        """Start a deployment: a new private directory, removed by `close`. Sweeps those of dead deployments
        first.

        Raises:  FailedPrecondition: no usable directory (see DeploymentDirectory.create).
        """
        owned = DeploymentDirectory.create(base)
        return cls(owned.path, owned)

    @classmethod
    def join(cls, directory: str | Path) -> ZmqMesh:
        """Join the deployment whose owner's `mesh.directory` this is.

        Raises:  Unavailable: the directory is gone, so its owner has closed or died.
        """
        if not Path(directory).is_dir():
            raise Unavailable(f"there is no deployment at {directory}: its owner has closed it or died")
        return cls(Path(directory), None)

    @property
    def deployment_id(self) -> str:
        return self.directory.name

    def endpoint(self, address: str) -> ZmqEndpoint:
        """Open `address` for this process.

        Raises:  FailedPrecondition: a living endpoint has it.  Unavailable: the mesh is closed or its
                 directory gone.
        """
        check_address(address)
        if self._closed or not self.directory.is_dir():
            raise Unavailable(f"the deployment {self.deployment_id} is closed, {address} cannot join it")
        lock_fd = lock_file(self.directory / f"{_file_name(address)}.lock")
        if lock_fd is None:
            raise FailedPrecondition(f"the address {address!r} of {self.deployment_id} is held by a living process")
        try:
            endpoint = self._local[address] = ZmqEndpoint(self, address, lock_fd)
        except (zmq.ZMQError, OSError) as error:
            os.close(lock_fd)
            raise Unavailable(f"{address} cannot join {self.deployment_id}: {error}") from error
        return endpoint

    def close(self) -> None:
        """Close all endpoints of this process, after up to LINGER_MS for unsent messages. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for endpoint in list(self._local.values()):
            endpoint.close()
        self._context.term()
        if self._owned is not None:
            self._owned.remove()

    def bind_inbox(self, address: str) -> zmq.Socket[bytes]:
        """A PULL socket reachable from other processes.

        Each binding has a file name of its own under a symbolic link: a closed predecessor removes its socket
        file at some later time, from ZeroMQ's thread, and must not remove ours.
        """
        inbox = self._socket(zmq.PULL)
        link = self.directory / _file_name(address)
        name = f"{link.name}.{os.getpid()}.{secrets.token_hex(2)}"
        inbox.bind(f"ipc://{self.directory / name}")
        fresh_link = self.directory / f"{name}.new"
        fresh_link.symlink_to(name)
        fresh_link.rename(link)
        return inbox

    def connect(self, address: str) -> zmq.Socket[bytes]:
        """A PUSH socket towards `address`, which need not exist yet."""
        outbox = self._socket(zmq.PUSH)
        outbox.connect(f"ipc://{self.directory / _file_name(address)}")
        return outbox

    def local(self, address: str) -> ZmqEndpoint | None:
        """The endpoint of that address, if it is one of this object's."""
        return self._local.get(address)

    def forget(self, address: str) -> None:
        self._local.pop(address, None)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        # No high-water mark: with one, two peers that burst at each other before reading would both block for
        # ever.
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, LINGER_MS)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        return socket


def _drop(outbox: zmq.Socket[bytes]) -> None:
    """Close it, and make sure that what waits in it is never sent: closing alone takes effect at some later time, and a
    successor of the peer that binds before gets what waits.
    """
    outbox.set(zmq.LINGER, 0)
    endpoint = outbox.last_endpoint
    assert isinstance(endpoint, bytes)
    outbox.disconnect(endpoint)
    outbox.close(0)


class ZmqEndpoint:
    """See `ControlEndpoint`."""

    def __init__(self, mesh: ZmqMesh, address: str, lock_fd: int) -> None:
        self._mesh = mesh
        self._address = address
        self._lock_fd = lock_fd
        self._inbox = mesh.bind_inbox(address)
        self._handed: deque[bytes] = deque()
        self._handed_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._handed_fd, zmq.POLLIN)
        self._outboxes: dict[str, zmq.Socket[bytes]] = {}
        self._send_lock = threading.Lock()
        self._header = frame_header(address)
        self._opener = EnvelopeOpener(address)
        self._before_receive: list[Callable[[], None]] = []
        self._arrived: list[Envelope] = []
        self._may_hold_more = True
        self._watch: _LoopWatch | None = None
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def num_rejected(self) -> int:
        return self._opener.num_rejected

    def send(self, to: str, message: Message) -> None:
        frame = self._header + encode(message)
        with self._send_lock:
            if self._closed:
                raise Unavailable(f"{self._address} is closed and cannot send to {to}")
            # A peer that was written to before it opened here gets the rest the same way, in order.
            receiver = self._mesh.local(to) if to not in self._outboxes else None
            if receiver is None:
                self._outbox(to).send(frame, zmq.NOBLOCK)
        if receiver is not None:
            receiver.hand(frame)

    def hand(self, frame: bytes) -> None:
        """A message from an endpoint of the same mesh, from any thread."""
        with self._send_lock:  # after close() the number of the descriptor may be another file's
            if self._closed:
                return
            self._handed.append(frame)
            if self._watch is not None and self._watch.is_on_running_loop():
                self._watch.wake()
            else:
                os.eventfd_write(self._handed_fd, 1)

    def receive(self, timeout_s: float | None) -> list[Envelope]:
        self._prepare()
        envelopes = self._take()
        if envelopes or timeout_s == 0:
            return envelopes
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not envelopes and (remaining_s := end_s - time.monotonic()) > 0:
            # Woken for a message that an earlier call has taken already, it waits on.
            events = self._poller.poll(None if timeout_s is None else math.ceil(remaining_s * 1e3))
            if any(ready == self._handed_fd for ready, _ in events):
                os.eventfd_read(self._handed_fd)
            envelopes = self._take()
        return envelopes

    async def receive_async(self) -> list[Envelope]:
        self._prepare()
        watch = self._watch_running_loop()
        while True:
            # What has come to the socket was drained when the loop was told of it.
            if self._arrived or self._handed or self._may_hold_more:
                envelopes = self._take()
                if envelopes:
                    return envelopes
            await watch.arrival()
            if self._closed:
                raise Unavailable(f"{self._address} was closed while it waited for messages")

    def before_receive(self, action: Callable[[], None]) -> None:
        self._before_receive.append(action)

    def forget_peer(self, address: str) -> None:
        with self._send_lock:
            outbox = self._outboxes.pop(check_address(address), None)
            if outbox is not None:
                _drop(outbox)

    def close(self) -> None:
        with self._send_lock:
            if self._closed:
                return
            self._closed = True
            if self._watch is not None:
                self._watch.stop()
            for outbox in self._outboxes.values():
                outbox.close(LINGER_MS)
        self._mesh.forget(self._address)
        self._inbox.close(0)
        os.close(self._handed_fd)
        os.close(self._lock_fd)

    def _outbox(self, to: str) -> zmq.Socket[bytes]:
        outbox = self._outboxes.get(to)
        if outbox is None:
            outbox = self._outboxes[check_address(to)] = self._mesh.connect(to)
        return outbox

    def _prepare(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._address} is closed and cannot receive")
        for action in self._before_receive:
            action()

    def _take(self) -> list[Envelope]:
        if not self._arrived:
            return self._drain()
        envelopes, self._arrived = self._arrived[:MAX_DRAIN], self._arrived[MAX_DRAIN:]
        return envelopes

    def _drain(self) -> list[Envelope]:
        frames: list[bytes] = []
        if self._handed:
            frames += [self._handed.popleft() for _ in range(min(len(self._handed), MAX_DRAIN))]
        inbox, room = self._inbox, MAX_DRAIN - len(frames)
        # To ask first takes half as long as to receive and fail.
        while room and int(inbox.get(_EVENTS)) & _READABLE:
            frames.append(inbox.recv(zmq.NOBLOCK))
            room -= 1
        self._may_hold_more = not room
        return self._opener.open(frames)

    def _on_handed(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._handed_fd)
        return self._on_readable()

    def _on_readable(self) -> bool:
        self._arrived.extend(self._drain())
        return bool(self._arrived)

    def _watch_running_loop(self) -> _LoopWatch:
        loop = asyncio.get_running_loop()
        if self._watch is None or self._watch.loop is not loop:
            if self._watch is not None:
                self._watch.stop()
            readers = {self._inbox.fileno(): self._on_readable, self._handed_fd: self._on_handed}
            self._watch = _LoopWatch(loop, readers)
            self._may_hold_more = True
        return self._watch


class _LoopWatch:
    """Wakes the receiver when the event loop finds the socket's descriptor readable and messages arrived.

    The descriptor signals a change of state, not that messages are there, and stays readable until someone
    has drained the socket; so each signal drains it, whether or not anyone is waiting. Staying registered
    with the loop saves the registration per message that makes zmq.asyncio slow.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, readers: Mapping[int, Callable[[], bool]]) -> None:
        self.loop = loop
        self._descriptors = tuple(readers)
        self._waiter: asyncio.Future[None] | None = None
        for descriptor, read in readers.items():
            loop.add_reader(descriptor, self._check, read)

    def is_on_running_loop(self) -> bool:
        """Whether the calling thread runs the loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def arrival(self) -> asyncio.Future[None]:
        self._waiter = self.loop.create_future()
        return self._waiter

    def stop(self) -> None:
        if not self.loop.is_closed():
            for descriptor in self._descriptors:
                self.loop.remove_reader(descriptor)
            self.wake()

    def _check(self, read: Callable[[], bool]) -> None:
        if read():
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _file_name(address: str) -> str:
    return address.replace("/", "-")
