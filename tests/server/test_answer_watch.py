"""One timer watches over all requests that have a deadline."""

from __future__ import annotations

import asyncio

from mstar_rt.clock import ManualClock
from mstar_rt.errors import MstarError
from mstar_rt.server.answer_watch import AnswerWatch
from mstar_rt.server.request_stream import RequestStream

NOW_NS, LONG_NS = 10**9, 10**12


class GivenUp:
    """Who was given up, in order; `heard` is set each time."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.heard = asyncio.Event()
        self.watch = AnswerWatch(ManualClock(NOW_NS), 0.0, self._give_up)

    def _give_up(self, stream: RequestStream, error: MstarError) -> None:
        self.ids.append(stream.request_id)
        self.watch.stop(stream.request_id)
        stream.fail(error)
        self.heard.set()

    def start(self, request_id: str, deadline_ns: int) -> RequestStream:
        stream = RequestStream(request_id, "toy", {}, {}, lambda stream: None)
        self.watch.start(stream, deadline_ns)
        return stream

    async def hear(self) -> list[str]:
        """Who has been given up once somebody is."""
        await asyncio.wait_for(self.heard.wait(), 5)
        self.heard.clear()
        return self.ids


async def test_the_earliest_is_given_up_whatever_was_watched_before() -> None:
    given_up = GivenUp()
    given_up.start("late", NOW_NS + LONG_NS)
    given_up.start("due", NOW_NS)
    assert await given_up.hear() == ["due"]
    assert [round(due_s) for due_s in given_up.watch.due_in_s()] == [LONG_NS // 10**9]
    given_up.start("due later", NOW_NS + 1)
    assert await given_up.hear() == ["due", "due later"]


async def test_the_next_one_is_looked_after_when_the_first_has_ended() -> None:
    """The timer was set for one that has ended meanwhile."""
    given_up = GivenUp()
    given_up.start("ends", NOW_NS)
    given_up.start("hangs", NOW_NS + 1_000_000)
    given_up.watch.stop("ends")
    assert await given_up.hear() == ["hangs"]
    assert given_up.watch.due_in_s() == []


async def test_one_that_has_ended_is_not_given_up() -> None:
    given_up = GivenUp()
    ended = given_up.start("ended", NOW_NS)
    ended.fail(MstarError("something else"))
    given_up.start("hangs", NOW_NS)
    assert await given_up.hear() == ["hangs"]
