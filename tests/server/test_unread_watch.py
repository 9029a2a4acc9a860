"""Who reads nothing, who reads slowly, and who had his turn: without any patience, so that each look is one turn."""

from __future__ import annotations

import asyncio

from mstar_rt.errors import MstarError
from mstar_rt.server.request_stream import EMISSION_BYTES, Emission, RequestStream
from mstar_rt.server.unread_watch import UnreadWatch


class Rig:
    """Two emissions may wait; the look of a timer comes with the next turn of the event loop."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.given_up: list[MstarError] = []
        self.watch = UnreadWatch(2 * (100 + EMISSION_BYTES), lambda _, error: self.given_up.append(error), patience_s)
        self.stream = RequestStream("r", "toy", {}, {}, lambda _: None)
        self._emissions = aiter(self.stream)

    def emit(self, num_bytes: int = 100) -> bool:
        self.stream.add(Emission("walk", "x", (), "uint8", (num_bytes,), bytes(num_bytes)))
        return self.watch.look(self.stream)

    async def read(self) -> None:
        await anext(self._emissions)


async def turns(count: int = 3) -> None:
    """One look at most in each."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_reads_nothing_is_given_up_and_his_answer_dropped() -> None:
    rig = Rig()
    assert [rig.emit() for _ in range(3)] == [False, False, True]
    assert not rig.given_up
    await turns()
    assert len(rig.given_up) == 1
    assert rig.stream.num_unread_bytes == rig.stream.num_unread == 0


async def test_who_reads_slowly_is_waited_for_as_long_as_he_reads() -> None:
    rig = Rig()
    for _ in range(7):
        rig.emit()
    for _ in range(4):
        await rig.read()
        await turns(1)
        assert not rig.given_up, "more than the bound waits, and some of it has been read since the last look"
    await turns()
    assert len(rig.given_up) == 1


async def test_who_catches_up_is_not_looked_at_any_more() -> None:
    rig = Rig()
    for _ in range(3):
        rig.emit()
    await rig.read()
    await turns()
    assert not rig.given_up


async def test_four_times_as_much_is_too_much_for_anyone() -> None:
    rig = Rig(patience_s=3600)
    for _ in range(8):
        rig.emit()
    assert not rig.given_up
    rig.emit()
    assert len(rig.given_up) == 1
    rig.watch.stop("r")


async def test_one_emission_may_have_any_size_and_an_end_stops_the_watch() -> None:
    rig = Rig()
    assert not rig.emit(10_000)
    await rig.read()
    for _ in range(3):
        rig.emit()
    rig.watch.stop("r")
    rig.watch.stop("r")
    await turns()
    assert not rig.given_up
