"""Who waits for room in this rank's shared memory, as others have still to read what fills it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mstar_rt.clock import Clock
from mstar_rt.errors import InvalidArgument, LargerThanSharedMemory, MstarError, SharedMemoryExhausted
from mstar_rt.transport import TensorPlane
from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.unit import CLASS_OF

MAX_WAIT_S = 10.0
"""Readers let go when they read their inbox, after a step at most. What they cannot take in yet stays, and may in turn
wait for what finds no room here: hence an end."""

_ADVICE = "ask for less at a time, or raise workers.shared_memory_mb"


@dataclass(slots=True, eq=False)
class Delivery:
    """What is to be sent, of a walk or (None) for another rank that asks.

    `send` raises SharedMemoryExhausted where there is no room for the next part of it, of which it holds nothing then.
    Either it returns once or `give_up` is called once, unless the walk ends before.
    """

    send: Callable[[], None]
    give_up: Callable[[MstarError], None]
    walk: ActiveWalk | None
    shortage: SharedMemoryExhausted
    until_ns: int = 0

    @property
    def priority(self) -> int:
        """The lower, the sooner. What others ask for begins a walk of theirs, whose class is not known here."""
        return 0 if self.walk is None else CLASS_OF[self.walk.start.criticality]


class Room:
    """A queue by class, within it first come first served. Tensors that travel inside messages need no room, and never
    wait.

    Who needs much is not passed by those of its own or a lower class that need little, or they might fill the memory
    again and again before there is enough.
    """

    def __init__(self, plane: TensorPlane, clock: Clock) -> None:
        self._plane = plane
        self._now_ns = clock.now_ns
        self._waiting: list[Delivery] = []
        self.came = False
        """Readers have let go of something since the last try."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def behind_others(self, walk: ActiveWalk) -> Iterator[None]:
        """What the walk sends finds no room if the turn of the first who waits is before its own."""
        self._plane.is_reserved = self._waiting[0].priority <= CLASS_OF[walk.start.criticality]
        try:
            yield
        finally:
            self._plane.is_reserved = False

    def wait(self, delivery: Delivery) -> None:
        """It found no room."""
        can_come = self._plane.num_held_bytes or self._waiting
        if isinstance(delivery.shortage, LargerThanSharedMemory) or not can_come:
            delivery.give_up(_never_fits(delivery.shortage))
            return
        delivery.until_ns = self._now_ns() + int(MAX_WAIT_S * 1e9)
        self._waiting.append(delivery)
        self._waiting.sort(key=lambda waiting: waiting.priority)

    def try_again(self, now_ns: int) -> None:
        """In turn, until there is no room for the next; and give up those that have waited for too long."""
        if self.came:
            self._send_waiting()
        for delivery in [waiting for waiting in self._waiting if waiting.until_ns <= now_ns]:
            self._waiting.remove(delivery)
            text = f"{delivery.shortage}; in {MAX_WAIT_S:.0f} s nobody read enough of it: {_ADVICE}"
            delivery.give_up(SharedMemoryExhausted(text))

    @property
    def first_end_ns(self) -> int:
        """When the first of them will have waited for too long; somebody waits."""
        return min(waiting.until_ns for waiting in self._waiting)

    def forget(self, walk: ActiveWalk) -> None:
        """It has ended, or begins again."""
        self._waiting = [waiting for waiting in self._waiting if waiting.walk is not walk]

    def _send_waiting(self) -> None:
        self.came = False
        while self._waiting:
            delivery = self._waiting.pop(0)
            try:
                delivery.send()
            except SharedMemoryExhausted as shortage:
                delivery.shortage = shortage
                if self._plane.num_held_bytes and not isinstance(shortage, LargerThanSharedMemory):
                    self._waiting.insert(0, delivery)
                    return
                delivery.give_up(_never_fits(shortage))


def _never_fits(shortage: SharedMemoryExhausted) -> InvalidArgument:
    return InvalidArgument(
        f"a tensor for another process does not fit into this worker's shared memory, even alone: {shortage}; {_ADVICE}"
    )
