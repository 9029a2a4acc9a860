"""ActionQueue and DelayEstimate: whatever comes in whatever order, the robot goes forward one action at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.client import ActionQueue, DelayEstimate, QueuedChunk
from mstar_rt.clock import ManualClock
from mstar_rt.errors import InvalidArgument

PERIOD_NS = 50_000_000


def chunk(seq: int, tick: int, *, num: int = 4, epoch: int = 0, made_ns: int = 0) -> QueuedChunk:
    """Row i of the chunk of observation `seq` is [seq, tick + i]: whose it is, and the tick it is meant for."""
    actions = np.array([[seq, tick + i] for i in range(num)], np.float32)
    return QueuedChunk(seq, epoch, tick, made_ns, actions)


def test_a_chunk_in_time_is_executed_from_its_first_row() -> None:
    queue = ActionQueue(ManualClock())
    assert queue.merge(chunk(1, tick=0)).start_index == 0
    taken = [queue.take() for _ in range(4)]
    assert [(each.kind, each.chunk_seq, each.index) for each in taken] == [("chunk", 1, i) for i in range(4)]
    assert queue.take().kind == "hold"


def test_a_late_chunk_starts_at_the_row_that_is_due() -> None:
    queue = ActionQueue(ManualClock())
    queue.merge(chunk(1, tick=0))
    taken = [queue.take() for _ in range(3)]
    merged = queue.merge(chunk(2, tick=1))
    assert (merged.outcome, merged.start_index) == ("used", 2)
    taken += [queue.take() for _ in range(2)]
    assert [each.action.tolist() for each in taken] == [[1, 0], [1, 1], [1, 2], [2, 3], [2, 4]]
    assert (queue.newest_seq, queue.executed_index, queue.num_remaining) == (2, 3, 0)


def test_holding_consumes_nothing() -> None:
    queue = ActionQueue(ManualClock())
    queue.merge(chunk(1, tick=0, num=1))
    queue.take()
    for _ in range(5):
        assert queue.take().kind == "hold"
    assert queue.num_consumed == 1
    assert queue.merge(chunk(2, tick=1)).start_index == 0


def test_an_older_chunk_and_one_of_another_epoch_are_refused() -> None:
    queue = ActionQueue(ManualClock())
    queue.start_epoch(3, keep_actions=False)
    queue.merge(chunk(5, tick=0, epoch=3))
    outcomes = [
        queue.merge(each).outcome
        for each in (chunk(4, 0, epoch=3), chunk(5, 0, epoch=3), chunk(6, 0), chunk(7, 0, epoch=4))
    ]
    assert outcomes == ["older", "older", "epoch", "epoch"]
    assert queue.take().chunk_seq == 5


def test_a_chunk_that_is_over_is_dropped() -> None:
    queue = ActionQueue(ManualClock())
    queue.merge(chunk(1, tick=0))
    for _ in range(4):
        queue.take()
    assert queue.merge(chunk(2, tick=0)).outcome == "past"
    assert (queue.newest_seq, queue.take().kind) == (1, "hold")


def test_the_seam_is_the_difference_for_the_same_tick() -> None:
    queue = ActionQueue(ManualClock())
    assert queue.merge(chunk(1, tick=0)).seam_jump is None
    queue.take()
    assert queue.merge(chunk(3, tick=0)).seam_jump == 2.0
    for _ in range(3):
        queue.take()
    assert queue.merge(chunk(4, tick=4)).seam_jump is None, "the old chunk had nothing for this tick"


@pytest.mark.parametrize(("hold", "expected"), [(None, None), ("repeat_last", [1, 3]), (np.array([9.0, 9.0]), [9, 9])])
def test_what_a_robot_does_that_has_nothing_to_do(hold: object, expected: list[float] | None) -> None:
    queue = ActionQueue(ManualClock(), hold)  # type: ignore[arg-type]
    before = queue.take()
    assert before.kind == "hold"
    assert "no action has come yet" in before.reason
    assert before.action is None or before.action.tolist() == [9, 9], "nothing to repeat yet"
    queue.merge(chunk(1, tick=0))
    for _ in range(4):
        queue.take()
    held = queue.take()
    assert held.reason == "all actions that have come are executed"
    assert (held.action if held.action is None else held.action.tolist()) == expected


def test_a_hold_that_is_no_hold() -> None:
    with pytest.raises(InvalidArgument, match="hold is 'freeze', expected an action"):
        ActionQueue(ManualClock(), "freeze")


def test_actions_of_an_old_observation_are_not_given_out() -> None:
    clock = ManualClock()
    queue = ActionQueue(clock, "repeat_last", max_action_age_s=0.1)
    queue.merge(chunk(1, tick=0))
    clock.advance_ns(2 * PERIOD_NS)
    assert queue.take().age_s == 0.1
    clock.advance_ns(1)
    stopped = queue.take()
    assert (stopped.kind, stopped.action) == ("stop", None), "a robot that stops repeats nothing"
    assert "is 0.100 s old" in stopped.reason
    assert (queue.num_consumed, queue.num_remaining) == (1, 0)
    queue.merge(chunk(2, tick=1, made_ns=clock.now_ns()))
    assert (queue.take().chunk_seq, queue.num_remaining) == (2, 3), "it goes on when something new comes"


def test_hold_becomes_stop_when_nothing_comes_and_the_hold_action_is_kept() -> None:
    clock = ManualClock()
    queue = ActionQueue(clock, np.zeros(2), max_action_age_s=0.1)
    kinds = []
    for _ in range(5):
        kinds.append(queue.take().kind)
        clock.advance_ns(PERIOD_NS)
    assert kinds == ["hold", "hold", "hold", "stop", "stop"]
    assert queue.take().action.tolist() == [0, 0]  # type: ignore[union-attr]


def test_another_episode_forgets_and_another_connection_goes_on() -> None:
    queue = ActionQueue(ManualClock(), "repeat_last")
    queue.merge(chunk(1, tick=0))
    queue.take()
    queue.start_epoch(1, keep_actions=True)
    assert (queue.newest_seq, queue.executed_index, queue.num_consumed) == (None, -1, 0)
    assert queue.take().action.tolist() == [1, 1]  # type: ignore[union-attr]
    assert queue.remaining().tolist() == [[1, 2], [1, 3]]  # type: ignore[union-attr]
    merged = queue.merge(chunk(2, tick=0, epoch=1))
    assert (merged.outcome, merged.start_index) == ("used", 1)
    queue.start_epoch(2, keep_actions=False)
    after = queue.take()
    assert (after.kind, after.action) == ("hold", None)


def test_the_time_until_there_is_nothing_left() -> None:
    clock = ManualClock()
    queue = ActionQueue(clock, max_action_age_s=0.25)
    assert queue.time_until_empty_s(20.0) == 0.0
    queue.merge(chunk(1, tick=0))
    assert queue.time_until_empty_s(20.0) == 0.2
    clock.advance_ns(2 * PERIOD_NS)
    assert queue.time_until_empty_s(20.0) == pytest.approx(0.15), "the rest will be too old"
    clock.advance_ns(4 * PERIOD_NS)
    assert queue.time_until_empty_s(20.0) == 0.0


def test_what_is_taken_is_the_callers() -> None:
    queue = ActionQueue(ManualClock(), "repeat_last")
    queue.merge(chunk(1, tick=0, num=1))
    queue.take().action[:] = 99.0  # type: ignore[index]
    assert queue.take().action.tolist() == [1, 0]  # type: ignore[union-attr]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_order_loss_or_delay_takes_the_robot_back(data: st.DataObject) -> None:
    """Observations at any tick, answered late, out of order, twice or never, over resets and reconnections."""
    queue, epoch, seq = ActionQueue(ManualClock()), 0, 0
    on_their_way: list[QueuedChunk] = []
    newest, last_tick, given_out = -1, -1, set()
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["observe", "arrive", "take", "take", "take", "reset", "reconnect"]))
        if step == "observe":
            seq += 1
            on_their_way.append(chunk(seq, queue.num_consumed, num=data.draw(st.integers(1, 6)), epoch=epoch))
        elif step == "arrive" and on_their_way:
            arriving = data.draw(st.sampled_from(on_their_way))
            merged = queue.merge(arriving)
            acceptable = arriving.epoch == epoch and arriving.seq > newest
            over = acceptable and arriving.tick + len(arriving.actions) <= queue.num_consumed
            assert (merged.outcome == "used") == (acceptable and not over)
            if merged.outcome == "used":
                newest = arriving.seq
                assert merged.start_index == queue.num_consumed - arriving.tick
        elif step == "take":
            action = queue.take()
            if action.kind == "chunk":
                assert action.action is not None
                assert (action.chunk_seq, action.index) not in given_out, "an action was given twice"
                given_out.add((action.chunk_seq, action.index))
                tick = int(action.action[1])
                if action.chunk_seq == newest:
                    assert tick == queue.num_consumed - 1, "the row is not that of this tick"
                    assert tick > last_tick
                    last_tick = tick
        elif step in ("reset", "reconnect") and data.draw(st.booleans()):
            epoch, newest, last_tick = epoch + 1, -1, -1
            queue.start_epoch(epoch, keep_actions=step == "reconnect")


def test_the_delay_is_the_maximum_of_a_window_without_warm_up() -> None:
    estimate = DelayEstimate()
    assert estimate.delay is None
    estimate.answered(0, 39.5)
    assert estimate.delay == 40, "better than nothing, until there is another"
    for num_ticks in (2, 5, 3):
        estimate.answered(num_ticks, 99.0)
    assert estimate.delay == 5
    for _ in range(10):
        estimate.answered(1, 99.0)
    assert estimate.delay == 1, "five is out of the window"
    estimate.warm_up_again()
    estimate.answered(30, 30.0)
    assert estimate.delay == 1, "the first chunk after a loss includes the warm-up"
    estimate.answered(4, 4.0)
    assert estimate.delay == 4
