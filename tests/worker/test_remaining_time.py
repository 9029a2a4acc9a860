"""What walks of a kind still need from a node on: what is usual and what is least, from those that ran to their end."""

from __future__ import annotations

from mstar_rt.message import StartWalk, TensorRef
from mstar_rt.worker.active import request_kind
from mstar_rt.worker.remaining_time import ENOUGH, MAX_KINDS, RETURN_NS, Pace, RemainingTime

MS = 1_000_000
FIRST, SECOND = (0, ()), (1, ())


def finish(pace: Pace, first_ms: int, second_ms: int, sure: bool = True, is_warm_up: bool = False) -> None:
    """A walk of two nodes; without `sure`, another one may leave out the second."""
    ran_ns = (first_ms + second_ms) * MS
    sure_ns = ran_ns if sure else first_ms * MS
    pace.finished([(FIRST, 0, 0), (SECOND, first_ms * MS, first_ms * MS)], ran_ns, sure_ns, is_warm_up)


def known(first_ms: int, second_ms: int, sure: bool = True) -> Pace:
    pace = Pace()
    for _ in range(1 + ENOUGH):
        finish(pace, first_ms, second_ms, sure)
    return pace


def test_nothing_is_known_before_the_second_walk_of_a_kind_and_no_least_before_some_more() -> None:
    pace = Pace()
    finish(pace, 500, 500)
    assert not pace.needed
    for number in range(ENOUGH):
        finish(pace, 8, 4)
        enough = number + 1 == ENOUGH
        assert pace.needed[FIRST] == (13.5 * MS + RETURN_NS, 12 * MS if enough else 0)
        assert pace.needed[SECOND] == (4.5 * MS + RETURN_NS, 4 * MS if enough else 0)


def test_warm_ups_never_make_anything_hopeless_and_are_forgotten_at_once() -> None:
    pace = Pace()
    for first_ms in (900, 80, 60, 80, 70):
        finish(pace, first_ms, 40, is_warm_up=True)
        assert all(least_ns == 0 for _, least_ns in pace.needed.values())
    assert pace.needed[FIRST][0] == 112.5 * MS + RETURN_NS, "the quickest but for the first"
    finish(pace, 8, 4)
    assert pace.needed[FIRST] == (13.5 * MS + RETURN_NS, 0)
    finish(pace, 8, 4)
    finish(pace, 700, 700, is_warm_up=True)
    finish(pace, 8, 4)
    assert pace.needed[FIRST] == (13.5 * MS + RETURN_NS, 12 * MS), "nor does a warm-up that comes later count"


def test_walks_that_run_out_of_time_tell_how_slow_the_warm_up_was() -> None:
    """Else, with too much to do from the start, each would be begun and none would end."""
    pace = Pace()
    for _ in range(3):
        finish(pace, 80, 40, is_warm_up=True)
    for ran_ms in (12, 8, 10):
        assert pace.needed[FIRST][1] == 0
        pace.stopped([(FIRST, 0, 0)], ran_ms * MS, SECOND)
    assert (pace.needed[FIRST][1], pace.needed[SECOND][1]) == (12 * MS, 4 * MS), "a tenth, at the least"
    finish(pace, 9, 4)
    assert pace.needed[FIRST][1] == 13 * MS, "what was measured to the end counts instead"


def test_what_is_least_falls_at_once_and_an_outlier_does_not_raise_it() -> None:
    pace = known(8, 4)
    finish(pace, 6, 3)
    assert pace.needed[FIRST][1] == 9 * MS
    finish(pace, 6, 900)
    assert pace.needed[FIRST][1] < 9.3 * MS
    finish(pace, 6, 3)
    assert pace.needed[FIRST][1] == 9 * MS


def test_what_is_usual_follows_slower_walks_soon_and_an_outlier_hardly() -> None:
    pace = known(8, 8)
    finish(pace, 8, 5000)
    assert pace.needed[FIRST][0] < 24 * MS
    for _ in range(20):
        finish(pace, 16, 16)
    assert pace.needed[FIRST][0] >= 32 * MS


def test_iterations_that_another_walk_may_leave_out_are_not_counted_on() -> None:
    pace = known(8, 40, sure=False)
    assert pace.needed[FIRST][1] == 8 * MS
    assert pace.needed[SECOND][1] == 0
    assert pace.needed[SECOND][0] > 40 * MS


def test_kinds_are_kept_apart_and_few() -> None:
    remaining = RemainingTime()
    assert remaining.pace("a") is remaining.pace("a")
    assert remaining.pace("a") is not remaining.pace("b")
    first = remaining.pace("a")
    for number in range(MAX_KINDS):
        remaining.pace(number)
    assert remaining.pace("a") is not first


def start(shape: tuple[int, ...] = (3, 64, 64), **params: bool | int | float | str) -> StartWalk:
    inputs = {"image": TensorRef("uint8", shape, b"")}
    return StartWalk("r", "m", "act", 1, 1, [0], "r", inputs, dict(params), None, "control", "server")


def test_long_and_short_requests_are_of_different_kinds() -> None:
    assert request_kind(start(steps=10, seed=1)) == request_kind(start(steps=10, seed=2, noise=0.5))
    assert request_kind(start(steps=10)) != request_kind(start(steps=3))
    assert request_kind(start(steps=10)) != request_kind(start((6, 64, 64), steps=10))
