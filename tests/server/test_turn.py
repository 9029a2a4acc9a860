"""A command is taken back at every moment of its turn, and has exactly one end all the same."""

from __future__ import annotations

import asyncio

import pytest

from mstar_rt.errors import Cancelled
from mstar_rt.server.turn import Turn


class Session:
    """Runs one turn of three waits and three answers as sessions do; `ends` is what it was answered with at last."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.waiting, self.written = asyncio.Event(), asyncio.Event()
        self.num_written = 0
        self.ends: list[str] = []

    def start(self) -> asyncio.Task[None]:
        self.turn.task = asyncio.ensure_future(self._answer())
        return self.turn.task

    async def _answer(self) -> None:
        error: Cancelled | None = None
        try:
            self.turn.begin()
            for index in range(3):
                await self._pass(self.waiting)
                await self.turn.write(self._write(), last=index == 2)
            self.ends.append("done")
        except asyncio.CancelledError:
            error = self.turn.why_interrupted()
        except Cancelled as failure:
            error = failure
        if error is not None:
            await self.turn.write(self._write(), last=True)
            self.ends.append(str(error))

    async def _write(self) -> None:
        await self._pass(self.written)
        self.num_written += 1

    async def _pass(self, gate: asyncio.Event) -> None:
        await gate.wait()
        gate.clear()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_before_its_task_has_begun() -> None:
    session = Session()
    task = session.start()
    assert session.turn.take_back()
    session.written.set()
    await task
    assert session.ends == ["the command was taken back before it started"]


async def test_while_it_waits_for_the_runtime() -> None:
    session = Session()
    task = session.start()
    await settle()
    assert session.turn.take_back()
    assert session.turn.take_back(), "it is still not answered to the end"
    session.written.set()
    await task
    assert session.ends == ["the command was taken back while it ran"]


async def test_while_an_answer_is_written_that_write_ends_first() -> None:
    session = Session()
    task = session.start()
    session.waiting.set()
    await settle()
    assert session.turn.take_back()
    await settle()
    assert not task.done()
    for _ in range(2):
        session.written.set()
        await settle()
    assert session.num_written == 2
    assert session.ends == ["the command was taken back while it ran"]


async def test_too_late_once_the_last_answer_is_written() -> None:
    session = Session()
    task = session.start()
    for _ in range(2):
        session.waiting.set()
        await settle()
        session.written.set()
        await settle()
    session.waiting.set()
    await settle()
    assert not session.turn.take_back()
    session.written.set()
    await task
    assert session.ends == ["done"]


@pytest.mark.parametrize("take_back_first", [False, True])
async def test_the_end_of_the_session_is_not_answered(take_back_first: bool) -> None:
    session = Session()
    task = session.start()
    await settle()
    if take_back_first:
        session.turn.take_back()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not session.ends
