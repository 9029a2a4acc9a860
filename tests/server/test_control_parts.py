"""The pure parts of a control session: slot, ticks, delay, ensemble, replanning, seeds, schema differences."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from control_stream import OPEN, schema
from hypothesis import given
from hypothesis import strategies as st
from toy_policy import POLICY

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.control.delay import WINDOW, DelayEstimate
from mstar_rt.server.control.ensemble import TemporalEnsemble
from mstar_rt.server.control.replanning import Replanning
from mstar_rt.server.control.schema_check import differences, policy_schema
from mstar_rt.server.control.seeds import chunk_seed
from mstar_rt.server.control.slot import NewestSlot
from mstar_rt.server.control.ticks import MAX_KEPT, SentChunks

HORIZON = 6
RNG = np.random.default_rng(5)


# ---- slot


@given(st.lists(st.sampled_from(["put", "take", "put_back"]), max_size=40))
def test_every_item_is_taken_or_overwritten_once(moves: list[str]) -> None:
    async def play() -> None:
        slot: NewestSlot[int] = NewestSlot()
        waiting: int | None = None
        running: int | None = None
        for number, move in enumerate(moves):
            if move == "put":
                assert slot.put(number) == waiting
                waiting = number
            elif move == "take" and waiting is not None and running is None:
                running = await slot.take()
                assert running == waiting
                waiting = None
            elif move == "put_back" and running is not None:
                assert slot.put_back(running) == waiting
                waiting = running if waiting is None else waiting
                running = None
        slot.close()
        assert await slot.take() == waiting
        assert await slot.take() is None

    asyncio.run(play())


async def test_take_waits_for_an_item_or_the_end() -> None:
    slot: NewestSlot[str] = NewestSlot()
    taking = asyncio.create_task(slot.take())
    await asyncio.sleep(0)
    slot.put("old")
    assert slot.put("new") == "old"
    assert await taking == "new"
    taking = asyncio.create_task(slot.take())
    await asyncio.sleep(0)
    slot.close()
    assert await taking is None


# ---- ticks


@given(st.lists(st.tuples(st.integers(0, HORIZON), st.integers(0, 2)), max_size=30))
def test_ticks_count_executed_actions(moves: list[tuple[int, int]]) -> None:
    """A robot executes some actions of the newest chunk that it has, which is up to two chunks old, and observes."""
    sent = SentChunks()
    chunks: list[tuple[int, int, np.ndarray]] = []
    executed = 0
    for seq, (count, age) in enumerate(moves):
        known = [each for each in chunks if each[1] <= executed <= each[1] + HORIZON][-1 - age :][:1]
        if known:
            ((chunk_seq, first, _),) = known
            executed = min(executed + count, first + HORIZON)
            tick = sent.tick(executed - first - 1, chunk_seq)
        else:
            tick = sent.tick(-1 if count else None, None) if not chunks else executed
        assert tick == executed
        rows = sent.not_executed(executed)
        if chunks and executed < chunks[-1][1] + HORIZON:
            assert rows is not None
            np.testing.assert_array_equal(rows, chunks[-1][2][executed - chunks[-1][1] :])
        else:
            assert rows is None
        actions = RNG.normal(size=(HORIZON, 2)).astype(np.float32)
        chunks.append((seq, executed, actions))
        sent.add(seq, executed, actions)


def test_chunks_that_the_robot_is_past_are_forgotten() -> None:
    sent = SentChunks()
    actions = np.zeros((HORIZON, 2), np.float32)
    for seq, tick in enumerate([0, 2, HORIZON, HORIZON + 1]):
        sent.add(seq, tick, actions)
    assert sent.tick(HORIZON - 1, 1) == HORIZON + 2
    with pytest.raises(InvalidArgument, match="has executed 3 actions, but that of chunk 3 had executed 7 already"):
        sent.tick(0, 1)
    with pytest.raises(InvalidArgument, match="no chunk of this episode"):
        sent.tick(0, 0)
    for seq in range(4, 4 + MAX_KEPT):
        sent.add(seq, HORIZON + 1, actions)
    with pytest.raises(InvalidArgument, match="no chunk of this episode"):
        sent.tick(0, 3)
    assert sent.tick(0, 4) == HORIZON + 2
    assert sent.num_sent == 4 + MAX_KEPT


def test_a_chunk_of_an_observation_without_a_place_has_none() -> None:
    sent = SentChunks()
    assert sent.tick(None, None) == 0
    sent.add(1, None, np.zeros((HORIZON, 2), np.float32))
    assert sent.tick(None, None) is None
    assert sent.not_executed(0) is None
    with pytest.raises(InvalidArgument, match="with every observation of an episode, or with none"):
        sent.tick(0, 1)


# ---- delay


@given(st.lists(st.floats(0.0, 2.0), max_size=40), st.floats(1.0, 100.0))
def test_the_estimate_is_the_largest_of_the_last_answers(elapsed: list[float], control_hz: float) -> None:
    estimate = DelayEstimate(control_hz)
    for each in elapsed:
        estimate.add(each)
    recent = elapsed[1:][-WINDOW:]
    assert estimate.ticks == max([1, *(math.ceil(each * control_hz) for each in recent)])


def test_the_first_answer_after_a_loss_is_left_out() -> None:
    estimate = DelayEstimate(10.0)
    for elapsed in (5.0, 0.15):
        estimate.add(elapsed)
    estimate.leave_out_next()
    estimate.add(9.0)
    assert estimate.ticks == 2
    estimate.forget_oldest()
    assert estimate.ticks == 1
    estimate.forget_oldest()


# ---- ensemble


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sampled_from([0.0, 0.01, 0.5, -0.5]), st.integers(1, 5))
def test_a_tick_gets_the_weighted_mean_of_its_chunks(steps: list[int], decay: float, horizon: int) -> None:
    """Against the formula, written out."""
    ensemble = TemporalEnsemble(horizon, decay)
    chunks: list[tuple[int, np.ndarray]] = []
    tick = 0
    for step in steps:
        tick += step
        actions = RNG.normal(size=(horizon, 2)).astype(np.float32)
        chunks = [*chunks, (tick, actions)][-horizon:]
        got = ensemble.add(tick, actions)
        for row in range(horizon):
            covering = [rows[tick + row - first] for first, rows in chunks if 0 <= tick + row - first < horizon]
            weights = [math.exp(-decay * i) for i in range(len(covering))]
            want = sum(w * a for w, a in zip(weights, covering, strict=True)) / sum(weights)
            np.testing.assert_allclose(got[row], want, rtol=1e-5, atol=1e-6)


# ---- replanning and seeds


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_no_observation_waits_longer_than_asked(replan_every: int, moves: list[tuple[int, int]]) -> None:
    replanning = Replanning(replan_every, 10.0)
    tick = periods = 0
    last: tuple[int, int] | None = None
    for executed, waited in moves:
        tick, periods = tick + executed, periods + waited
        due = replanning.is_due(tick, periods * 100_000_000)
        assert due == (last is None or tick - last[0] >= replan_every or periods - last[1] >= replan_every)
        if due:
            last = tick, periods
            replanning.begin(tick, periods * 100_000_000)


def test_without_a_wish_every_observation_is_due() -> None:
    replanning = Replanning(None, 10.0)
    replanning.begin(0, 0)
    assert replanning.is_due(0, 0)


def test_time_counts_where_the_robot_does_not_say_its_place() -> None:
    replanning = Replanning(4, 10.0)
    replanning.begin(None, 0)
    assert not replanning.is_due(None, 340_000_000)
    assert replanning.is_due(None, 350_000_000)


def test_seeds_are_what_the_documentation_says() -> None:
    assert chunk_seed(1, 2, 3, 2**63 - 1) == 3817744674624027255
    seeds = {chunk_seed(s, e, k, 2**63 - 1) for s in (0, 2**64 - 1) for e in (0, 1) for k in range(50)}
    assert len(seeds) == 200
    assert {chunk_seed(0, 0, k, 3) for k in range(100)} == {0, 1, 2, 3}


# ---- schema


def test_a_policy_fits_itself() -> None:
    for policy in (POLICY, replace(POLICY, state=None, cameras=())):
        described = policy_schema(policy).schema
        described.normalization = "field"
        opening = wire.OpenControl(**{**OPEN, "schema": described})
        assert not list(differences(policy, opening, "guided"))


@given(st.sets(st.sampled_from(["camera", "size", "state", "action", "statistics", "instruction", "mode"])))
def test_each_difference_is_told_whatever_the_others_are(wrong: set[str]) -> None:
    cameras = [wire.CameraSchema(name="top", height=17 if "size" in wrong else 16, width=16)]
    if "camera" in wrong:
        cameras.append(wire.CameraSchema(name="side", height=16, width=16))
    robot = schema(
        cameras=cameras,
        state=wire.VectorSchema(size=4 if "state" in wrong else 3),
        action=wire.VectorSchema(size=3 if "action" in wrong else 2),
        normalization="home" if "statistics" in wrong else "lab",
    )
    instruction = "" if "instruction" in wrong else "push"
    opening = wire.OpenControl(**{**OPEN, "schema": robot, "instruction": instruction})
    policy = replace(POLICY, chunking=("guided",), max_prefix_delay=None)
    told = list(differences(policy, opening, "prefix" if "mode" in wrong else "guided"))
    assert len(told) == len(wrong)
