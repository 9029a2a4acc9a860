"""Which connection has which session, and what becomes of it when the connection is silent or gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from mstar_rt.errors import FailedPrecondition, ResourceExhausted
from mstar_rt.server.compat.lerobot.payloads import PolicyInstructions
from mstar_rt.server.compat.lerobot.session import LeRobotSession

REMEMBERED_S = 60.0
"""How long after a connection was lost its robot may come back on another one and go on."""
MAX_REMEMBERED = 256
SILENT_S = 3.0
"""RobotClient's longest pause between two calls, before it repeats one that has failed, is 2 s."""


class Place:
    """A session and the calls that use it now."""

    def __init__(self, peer: str, session: LeRobotSession, idle_timeout_s: float) -> None:
        self.peer = peer
        self.session = session
        self.idle_timeout_s = idle_timeout_s
        self._num_calls = 0
        self._is_sending = False
        self._since_s = asyncio.get_running_loop().time()

    @property
    def idle_s(self) -> float:
        """Since when no call uses it."""
        return 0.0 if self._num_calls else asyncio.get_running_loop().time() - self._since_s

    @contextmanager
    def calling(self) -> Iterator[LeRobotSession]:
        self._num_calls += 1
        try:
            yield self.session
        finally:
            self._num_calls -= 1
            self._since_s = asyncio.get_running_loop().time()

    @contextmanager
    def sending(self) -> Iterator[LeRobotSession]:
        """One observation at a time, so that a connection cannot fill the memory with half ones.

        Raises:  ResourceExhausted.
        """
        if self._is_sending:
            raise ResourceExhausted("another observation of this robot is being sent: send one at a time")
        self._is_sending = True
        try:
            with self.calling() as session:
                yield session
        finally:
            self._is_sending = False


class Places:
    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._opening: set[str] = set()
        self._news = asyncio.Condition()
        self._closing: set[asyncio.Task[None]] = set()
        self._lost: deque[tuple[float, str, PolicyInstructions]] = deque(maxlen=MAX_REMEMBERED)

    def get(self, peer: str) -> Place | None:
        return self._places.get(peer)

    def is_opening(self, peer: str) -> bool:
        return peer in self._opening

    async def wait_for(self, peer: str, timeout_s: float) -> Place | None:
        """The connection's place, once it has one; None: it has none in time."""
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: peer in self._places)
        except TimeoutError:
            return None
        return self._places.get(peer)

    @asynccontextmanager
    async def opening(self, peer: str) -> AsyncIterator[None]:
        """While the connection's new session is opened; the one that it had is over.

        Raises:  FailedPrecondition: it is opening one already.
        """
        if peer in self._opening:
            raise FailedPrecondition("this connection is opening a session already: wait for its answer")
        self._opening.add(peer)
        try:
            await self.free(peer)
            yield
        finally:
            self._opening.discard(peer)

    async def put(self, place: Place) -> None:
        self._places[place.peer] = place
        self._watch(place)
        async with self._news:
            self._news.notify_all()

    async def free(self, peer: str) -> None:
        place = self._places.pop(peer, None)
        if place is not None:
            await place.session.close()

    def lose(self, place: Place) -> None:
        """Its robot has gone, or the connection is cut: the place is free soon, and the robot may come back."""
        if self._places.get(place.peer) is not place:
            return
        now_s = asyncio.get_running_loop().time()
        self._lost.append((now_s + REMEMBERED_S, host_of(place.peer), place.session.given))
        self.drop(place)

    def drop(self, place: Place) -> None:
        if self._places.get(place.peer) is place:
            del self._places[place.peer]
        closing = asyncio.create_task(place.session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def lost_by(self, peer: str) -> PolicyInstructions | None:
        """What the robots of this host that lost their connection had asked for, if that is one and the same.

        A cut is not seen while no call is under way. So a connection that is silent, as RobotClient never is, when
        another one of its host asks for what it has not opened, counts as lost.
        """
        now_s, host = asyncio.get_running_loop().time(), host_of(peer)
        for place in list(self._places.values()):
            if host_of(place.peer) == host and place.idle_s > SILENT_S:
                self.lose(place)
        given = [each for until_s, its_host, each in self._lost if its_host == host and until_s > now_s]
        return given[0] if given and all(each == given[0] for each in given) else None

    def _watch(self, place: Place) -> None:
        """A client that calls nothing for so long has gone, or will ask for its session when it goes on."""
        if self._places.get(place.peer) is not place:
            return
        left_s = place.idle_timeout_s - place.idle_s
        if left_s <= 0:
            self.lose(place)
        else:
            asyncio.get_running_loop().call_later(left_s, self._watch, place)


def host_of(peer: str) -> str:
    """ "ipv4:10.0.0.7:51234" without its port."""
    return peer.rpartition(":")[0]
