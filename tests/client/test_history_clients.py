"""Both clients in a session that keeps a history, and the options of rollouts and goals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from toy_planner import Histories, planner_runtime
from toy_runtime import PATCHES, SIZE, WIDTH, Job, ToyRuntime

from mstar_rt.client import Client, RolloutDone, connect_async
from mstar_rt.client.observation_chain import MAX_UNANSWERED
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.message import Submit

STATE, ACTION = np.zeros(7), np.full(7, 0.01)
ACTIONS = np.ones((2, 7))
WEIGHTS = [1.0, 2.0]


def frame(value: int, size: int = SIZE) -> np.ndarray:
    return np.full((size, size, 3), value, np.uint8)


@pytest.fixture
def planner() -> Iterator[tuple[ToyRuntime, Histories]]:
    with planner_runtime() as running:
        yield running


@pytest.fixture
def runtime(planner: tuple[ToyRuntime, Histories]) -> ToyRuntime:
    return planner[0]


@pytest.fixture
def histories(planner: tuple[ToyRuntime, Histories]) -> Histories:
    return planner[1]


def test_a_history_grows_by_what_is_observed(client: Client, runtime: ToyRuntime, histories: Histories) -> None:
    with client.session("planner", context_window=2, window_stride=1) as session:
        assert session.observed is None
        session.observe(frame(1), STATE)
        for value, num_frames in ((2, 2), (3, 2)):
            message_id = session.observe(frame(value), STATE, executed_action=ACTION, extrinsics=np.zeros((1, 6)))
            observed = session.observed
            assert observed is not None
            assert (observed.message_id, observed.num_frames, observed.flags) == (message_id, num_frames, ("seen",))
            assert observed.request_id
            assert 0 < observed.decode_us < observed.timing.total_us
        plan = session.plan(goal_frames=frame(9))
        assert plan.observation_id == message_id
        assert plan.elite_std is not None
        np.testing.assert_array_equal(plan.elite_std, np.full((3, 4), 2))
        assert [improvement.elite_std[0, 0] for improvement in plan.improvements] == [1, 2]  # type: ignore[index]
    assert list(histories.of.values()) == [[1, 2, 3]]
    first, second, *_ = runtime.wait_for(Submit, 4)
    assert first.params == {"context_window": 2, "window_stride": 1}
    assert "extrinsics" in second.inputs


def test_a_failed_observation_takes_those_after_it_with_it(client: Client, histories: Histories) -> None:
    """The second is sent before the refusal of the first is read; its action began at a frame that is not there."""
    with client.session("planner", context_window=2) as session:
        session.observe(frame(1), STATE)
        session.observe(frame(2, size=8), STATE, executed_action=ACTION, wait=False)
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            session.observe(frame(3), STATE, executed_action=ACTION)
        session.observe(frame(4), STATE, executed_action=ACTION)
        assert session.observed is not None
        assert session.observed.num_frames == 2
    assert list(histories.of.values()) == [[1, 4]]


def test_observing_without_waiting_loses_nothing(client: Client, histories: Histories) -> None:
    with client.session("planner", context_window=6) as session:
        session.observe(frame(1), STATE, wait=False)
        for value in range(2, 7):
            last = session.observe(frame(value), STATE, executed_action=ACTION, wait=False)
        assert session.plan(goal_frames=frame(9)).observation_id == last
        assert session.observed is not None
        assert session.observed.num_frames == 6
    assert list(histories.of.values()) == [[1, 2, 3, 4, 5, 6]]


def hold_first_observation(runtime: ToyRuntime) -> Callable[[], None]:
    """Returns what lets it go."""
    let_go, script = asyncio.Event(), runtime.scripts["observe"]

    async def held(job: Job) -> None:
        await let_go.wait()
        await script(job)

    async def release() -> None:
        let_go.set()

    runtime.script("observe", held)
    return lambda: runtime.run(release())


def test_any_number_is_observed_without_waiting(
    client: Client, runtime: ToyRuntime, histories: Histories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is answered only when the client stops to send and waits."""
    release = hold_first_observation(runtime)
    with client.session("planner", context_window=6) as session:
        read = session._read

        def release_and_read() -> None:
            release()
            read()

        monkeypatch.setattr(session, "_read", release_and_read)
        for value in range(60):
            action = ACTION if value else None
            last = session.observe(frame(value), STATE, executed_action=action, wait=False)
            assert len(session._observing) <= MAX_UNANSWERED
        assert session.plan(goal_frames=frame(9)).observation_id == last
        assert not session._observing
    assert list(histories.of.values()) == [list(range(60))]


@pytest.mark.parametrize("bad", [0, 3, 30])
def test_one_failed_observation_is_raised_once(client: Client, histories: Histories, bad: int) -> None:
    """Each call is made once, whatever it raises."""
    raised: list[Exception] = []
    with client.session("planner", context_window=6) as session:
        session.set_goal(frame(9))
        for value in range(60):
            size = 8 if value == bad else SIZE
            try:
                session.observe(frame(value, size), STATE, executed_action=ACTION, wait=False)
            except InvalidArgument as error:
                raised.append(error)
        session.plan()
    assert ["tensor 'frames' has shape" in str(error) for error in raised] == [True]
    (history,) = histories.of.values()
    assert history[:bad] == list(range(bad))
    assert bad not in history
    assert history[-1] == 59


def test_closing_raises_nothing_for_those_that_follow_a_fault(client: Client, runtime: ToyRuntime) -> None:
    release = hold_first_observation(runtime)
    with client.session("planner", context_window=6) as session:
        session.observe(frame(1, 8), STATE, wait=False)
        for value in range(2, 7):
            session.observe(frame(value), STATE, executed_action=ACTION, wait=False)
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            session.set_goal(frame(9))
        release()


async def test_tasks_that_observe_wait_for_one_another(runtime: ToyRuntime, histories: Histories) -> None:
    release = hold_first_observation(runtime)
    async with connect_async(runtime.address) as client, client.session("planner", context_window=6) as session:
        observing = [
            asyncio.ensure_future(session.observe(frame(value), STATE, executed_action=ACTION if value else None))
            for value in range(60)
        ]
        planning = asyncio.ensure_future(session.plan(goal_frames=frame(9)))
        await asyncio.to_thread(runtime.wait_for, Submit)
        assert len(session._observing) == MAX_UNANSWERED
        await asyncio.to_thread(release)
        ids = await asyncio.gather(*observing)
        assert ids == sorted(ids)
        assert (await planning).observation_id == ids[-1]
    assert list(histories.of.values()) == [list(range(60))]


async def test_tasks_fail_with_an_observation_before_theirs(runtime: ToyRuntime, histories: Histories) -> None:
    """Their actions began at a frame that is not there, also if they had not been sent when that was known."""
    release = hold_first_observation(runtime)
    async with connect_async(runtime.address) as client, client.session("planner", context_window=6) as session:
        observing = [
            asyncio.ensure_future(
                session.observe(
                    frame(value, 8 if value == 3 else SIZE), STATE, executed_action=ACTION if value else None
                )
            )
            for value in range(20)
        ]
        await asyncio.to_thread(runtime.wait_for, Submit)
        await asyncio.to_thread(release)
        done = await asyncio.gather(*observing, return_exceptions=True)
        assert [type(each) for each in done[:4]] == [int, int, int, InvalidArgument]
        assert {type(each) for each in done[4:]} == {FailedPrecondition}
        await session.observe(frame(77), STATE, executed_action=ACTION)
    assert list(histories.of.values()) == [[0, 1, 2, 77]]


async def test_an_observation_that_is_cancelled_before_it_is_sent_fails_those_after_it(
    runtime: ToyRuntime, histories: Histories
) -> None:
    release = hold_first_observation(runtime)
    async with connect_async(runtime.address) as client, client.session("planner", context_window=6) as session:
        observing = [
            asyncio.ensure_future(session.observe(frame(value), STATE, executed_action=ACTION if value else None))
            for value in range(20)
        ]
        await asyncio.to_thread(runtime.wait_for, Submit)
        observing[12].cancel()
        await asyncio.to_thread(release)
        done = await asyncio.gather(*observing, return_exceptions=True)
        assert {type(each) for each in done[:12]} == {int}
        assert {type(each) for each in done[13:]} == {FailedPrecondition}
        await session.observe(frame(77), STATE, executed_action=ACTION)
    assert list(histories.of.values()) == [[*range(12), 77]]


def test_what_only_a_history_takes(client: Client) -> None:
    with client.session("planner") as session:
        with pytest.raises(InvalidArgument, match="keeps no history: open one with context_window"):
            session.observe(frame(1), STATE, executed_action=ACTION)
        session.observe(frame(1), STATE)
        session.observe(frame(2), STATE)
        assert session.observed is not None
        assert session.observed.num_frames == 0
    for window in (0, -1, 2**32, 1.5, "2", True):
        with pytest.raises(InvalidArgument, match=r"context_window is .*, expected a whole number from 1"):
            client.session("planner", context_window=window)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="give context_window too"):
        client.session("planner", window_stride=1)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (None, [("latent",), ("latent",)]),
        ("latents", [("latent",), ("latent",)]),
        ("last_latent", [(), ("latent",)]),
        ("goal_distance", [("goal_distance",), ("goal_distance",)]),
    ],
)
def test_outputs_of_a_rollout(client: Client, output: str | None, shown: list[tuple[str, ...]]) -> None:
    goal: dict[str, Any] = {"goal_frames": frame(9)} if output == "goal_distance" else {}
    steps = list(client.rollout("planner", frame(1), ACTIONS, STATE, output=output, **goal))
    with client.session("planner", context_window=2) as session:
        session.set_goal(frame(9))
        session.observe(frame(1), STATE)
        *in_session, done = session.rollout(ACTIONS, output=output)
    assert isinstance(done, RolloutDone)
    for made in (steps, in_session):
        values = [{"latent": step.latent, "goal_distance": step.goal_distance} for step in made]
        assert [tuple(name for name in each if each[name] is not None) for each in values] == shown


def test_goals_of_all_kinds_reach_the_model(client: Client, runtime: ToyRuntime) -> None:
    several = np.zeros((2, PATCHES, WIDTH), np.float32)
    goal: dict[str, Any] = {"goal_latents": several, "goal_use": "nearest", "goal_weights": WEIGHTS}
    client.plan("planner", frame(1), None, STATE, extrinsics=np.zeros((1, 6)), **goal)
    list(client.rollout("planner", frame(1), ACTIONS, STATE, output="goal_distance", extrinsics=[[0] * 6], **goal))
    with client.session("planner", context_window=2) as session:
        session.observe(frame(1), STATE)
        session.set_goal(**goal)
        session.plan(**goal)
        list(session.rollout(ACTIONS, output="goal_distance", context_window=1, **goal))
        session.plan(goal_use="last", goal_frames=frame(1))
    plan, rollout, _, kept, of_session, imagined, last = runtime.wait_for(Submit, 7)
    for submit in (plan, rollout, kept, of_session, imagined):
        assert submit.inputs["goal_latents"].shape == (2, PATCHES, WIDTH)
        assert submit.inputs["goal_weights"].shape == (2,)
        assert submit.params["goal_use"] == "nearest"
    assert {"extrinsics", "frames"} <= set(plan.inputs) & set(rollout.inputs)
    assert imagined.params["context_window"] == 1
    assert last.params["goal_use"] == "last"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"output": "all"}, "output is 'all', expected one of latents, last_latent, goal_distance"),
    ({"output": 1}, "output is 1, expected one of"),
    ({"output": "goal_distance"}, "asks for goal_distance without a goal"),
    ({"goal_frames": frame(1)}, "only output goal_distance compares it with"),
    ({"goal_use": "nearest"}, "goal_use is given without a goal: give goal_frames or goal_latents with it"),
    ({"goal_weights": WEIGHTS}, "goal_weights is given without a goal"),
    ({"goal_frames": frame(1), "goal_use": "nearst"}, "goal_use is 'nearst', expected one of last, per_step, nearest"),
    ({"goal_frames": frame(1), "goal_weights": "a"}, "goal_weights is 'a', expected an array"),
    ({"extrinsics": "a"}, "extrinsics is 'a', expected an array"),
    ({"extrinsics": np.zeros((1, 5))}, "tensor 'extrinsics' has shape"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
async def test_a_wrong_option_is_one_sentence(
    client: Client, runtime: ToyRuntime, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        list(client.rollout("planner", frame(1), ACTIONS, STATE, **wrong))
    async with connect_async(runtime.address) as asynchronous:
        with pytest.raises(InvalidArgument, match=sentence):
            [answer async for answer in asynchronous.rollout("planner", frame(1), ACTIONS, STATE, **wrong)]


async def test_the_asyncio_session_does_the_same(runtime: ToyRuntime, histories: Histories) -> None:
    goal: dict[str, Any] = {"goal_frames": frame(9), "goal_use": "nearest", "goal_weights": [1.0]}
    async with (
        connect_async(runtime.address) as client,
        client.session("planner", context_window=3, window_stride=2) as session,
    ):
        await session.observe(frame(1), STATE)
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            await session.observe(frame(2, size=8), STATE, executed_action=ACTION)
        with pytest.raises(FailedPrecondition, match="no goal"):
            [answer async for answer in session.rollout(ACTIONS, output="goal_distance")]
        newest = await session.observe(frame(3), STATE, executed_action=ACTION, extrinsics=np.zeros((1, 6)))
        assert session.observed is not None
        assert (session.observed.message_id, session.observed.num_frames) == (newest, 2)
        await session.set_goal(**goal)
        plan = await session.plan(**goal)
        assert plan.observation_id == newest
        assert plan.elite_std is not None
        *steps, _ = [answer async for answer in session.rollout(ACTIONS, output="goal_distance", **goal)]
        assert [step.goal_distance for step in steps] == [0.5, 1.5]
        assert (
            await client.plan("planner", frame(1), None, STATE, goal_latents=np.zeros((PATCHES, WIDTH)))
        ).actions.any()
    assert list(histories.of.values()) == [[1, 3]]
