"""What is said of steps over their bound: what would help, and that smaller steps would not where others had the core."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.worker.overruns import TOLD_AFTER, Overruns, Step

NODE = ("m", "n")
MS = 1_000_000


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, logger="mstar_rt.worker.overruns"):
        yield


def step(
    duration_ms: float = 2.0,
    usual_ms: float | None = 1.9,
    num_units: int = 1,
    num_items: int = 1,
    in_parts: bool = False,
) -> Step:
    usual_ns = None if usual_ms is None else int(usual_ms * MS)
    return Step(NODE, int(duration_ms * MS), usual_ns, num_units, num_items, in_parts)


@pytest.mark.parametrize(
    ("num_units", "num_items", "in_parts", "advice"),
    [
        (1, 1, False, "cannot run in parts, so a num_items"),
        (4, 4, False, "4 requests shared it"),
        (1, 5, True, "5 items were expected to fit"),
        (1, 1, True, "a single item takes that long"),
    ],
)
def test_what_would_help_is_said(
    caplog: pytest.LogCaptureFixture, num_units: int, num_items: int, in_parts: bool, advice: str
) -> None:
    overruns = Overruns(MS)
    overruns.note(step(usual_ms=None))
    for _ in range(TOLD_AFTER - 1):
        overruns.note(step(2.0, 1.9, num_units, num_items, in_parts))
    assert not caplog.records
    for _ in range(5):
        overruns.note(step(2.0, 1.9, num_units, num_items, in_parts))
    (message,) = caplog.messages
    assert message.startswith("a step of node n of model m took 2.0 ms, over max_step_ms = 1: ")
    assert advice in message
    assert overruns.stats() == {"over_bound/m/n": 8.0}


def test_a_step_whose_like_keep_the_bound_was_held_up(caplog: pytest.LogCaptureFixture) -> None:
    """However a GPU or several threads count the time."""
    overruns = Overruns(MS)
    for _ in range(9):
        overruns.note(step(30.0, usual_ms=0.7))
    (message,) = caplog.messages
    assert "where others like it take 0.7 ms at most: not its size is to blame but what else runs" in message
    assert "num_items" not in message


class Watched:
    """A worker whose thread has a clock of its own, and which takes a step now and then."""

    def __init__(self) -> None:
        self.ran = ManualClock()
        self.overruns = Overruns(MS, self.ran.now_ns)

    def run(self, duration_ms: float, ran_ms: float, usual_ms: float = 1.9) -> None:
        if NODE in self.overruns.watched:
            self.overruns.begin()
        self.ran.advance_ns(int(ran_ms * MS))
        if duration_ms > 1:
            self.overruns.note(step(duration_ms, usual_ms))


def test_where_others_had_the_core_no_smaller_step_is_advised(caplog: pytest.LogCaptureFixture) -> None:
    """Even if that is so often that the usual step is over the bound."""
    worker = Watched()
    for _ in range(20):
        worker.run(0.9, 0.9)
        worker.run(31.0, 0.9, usual_ms=25.0)
    (message,) = caplog.messages
    assert "took 31.0 ms, over max_step_ms = 1, of which it ran for 0.9 ms: not its size is to blame" in message
    assert worker.overruns.stats() == {"over_bound/m/n": 20.0}


def test_a_step_that_ran_all_the_time_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    worker = Watched()
    for _ in range(20):
        worker.run(31.0, 30.5, usual_ms=25.0)
    (message,) = caplog.messages
    assert "took 31.0 ms, over max_step_ms = 1: its code cannot run in parts, so a num_items() that says how" in message


def test_steps_are_watched_from_the_first_that_was_too_long_until_both_reasons_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Watched()
    worker.run(0.5, 0.5)
    assert not worker.overruns.watched
    for _ in range(1 + TOLD_AFTER):
        worker.run(3.0, 0.5)
    assert len(caplog.records) == 1
    assert worker.overruns.watched == {NODE}
    for _ in range(TOLD_AFTER):
        worker.run(3.0, 3.0)
    assert len(caplog.records) == 2
    worker.run(3.0, 3.0)
    assert not worker.overruns.watched
    assert worker.overruns.num_by_node[NODE] == 2 + 2 * TOLD_AFTER
