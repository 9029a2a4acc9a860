"""The control plane inside one process: the same encoded bytes through queues, without sockets."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable

from mstar_rt.errors import FailedPrecondition, Unavailable
from mstar_rt.message import Message, encode
from mstar_rt.transport.endpoint import MAX_DRAIN, Envelope, EnvelopeOpener, check_address, frame_header


class InProcessHub:
    """Endpoints that share this hub reach one another by address, across threads and event loops."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, _Mailbox] = {}
        self._lock = threading.Lock()

    def endpoint(self, address: str) -> InProcessEndpoint:
        """Open `address`.

        Raises:  FailedPrecondition: it is already open.  InvalidArgument: not an address.
        """
        mailbox = self._mailbox(check_address(address))
        with self._lock:
            if mailbox.is_open:
                raise FailedPrecondition(f"the address {address!r} is already open in this process")
            mailbox.is_open = True
        return InProcessEndpoint(self, address, mailbox)

    def _mailbox(self, address: str) -> _Mailbox:
        with self._lock:
            mailbox = self._mailboxes.get(address)
            if mailbox is None:
                mailbox = self._mailboxes[check_address(address)] = _Mailbox()
            return mailbox

    def deliver(self, to: str, sender: str, frame: bytes) -> None:
        self._mailbox(to).put(sender, frame)

    def forget(self, sender: str, to: str) -> None:
        self._mailbox(to).drop_from(sender)


class InProcessEndpoint:
    """See `ControlEndpoint`."""

    def __init__(self, hub: InProcessHub, address: str, mailbox: _Mailbox) -> None:
        self._hub = hub
        self._address = address
        self._mailbox = mailbox
        self._header = frame_header(address)
        self._opener = EnvelopeOpener(address)
        self._before_receive: list[Callable[[], None]] = []
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def num_rejected(self) -> int:
        return self._opener.num_rejected

    def send(self, to: str, message: Message) -> None:
        if self._closed:
            raise Unavailable(f"{self._address} is closed and cannot send to {to}")
        self._hub.deliver(to, self._address, self._header + encode(message))

    def receive(self, timeout_s: float | None) -> list[Envelope]:
        self._prepare()
        return self._opener.open(self._mailbox.take(timeout_s))

    async def receive_async(self) -> list[Envelope]:
        self._prepare()
        while True:
            envelopes = self._opener.open(await self._mailbox.take_async())
            if envelopes:
                return envelopes
            if self._closed:
                raise Unavailable(f"{self._address} was closed while it waited for messages")

    def before_receive(self, action: Callable[[], None]) -> None:
        self._before_receive.append(action)

    def forget_peer(self, address: str) -> None:
        self._hub.forget(self._address, check_address(address))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._mailbox.close()

    def _prepare(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._address} is closed and cannot receive")
        for action in self._before_receive:
            action()


class _Mailbox:
    """Frames on their way to one address; outlives the endpoint, so that messages wait for a restarted
    peer.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.is_open = False

    def put(self, sender: str, frame: bytes) -> None:
        with self._changed:
            self._frames.append((sender, frame))
            self._changed.notify()
            waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter[0].is_closed():
            waiter[0].call_soon_threadsafe(_wake, waiter[1])

    def take(self, timeout_s: float | None) -> list[bytes]:
        with self._changed:
            if not self._frames and timeout_s != 0:
                self._changed.wait_for(lambda: bool(self._frames), timeout_s)
            return self._pop()

    async def take_async(self) -> list[bytes]:
        while True:
            with self._changed:
                if self._frames or not self.is_open:
                    return self._pop()
                loop = asyncio.get_running_loop()
                arrived = loop.create_future()
                self._waiter = (loop, arrived)
            await arrived

    def drop_from(self, sender: str) -> None:
        with self._changed:
            if not self.is_open:
                self._frames = deque(frame for frame in self._frames if frame[0] != sender)

    def close(self) -> None:
        with self._changed:
            self._frames.clear()
            self.is_open = False
            waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter[0].is_closed():
            waiter[0].call_soon_threadsafe(_wake, waiter[1])

    def _pop(self) -> list[bytes]:
        count = min(len(self._frames), MAX_DRAIN)
        return [self._frames.popleft()[1] for _ in itertools.repeat(None, count)]


def _wake(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
