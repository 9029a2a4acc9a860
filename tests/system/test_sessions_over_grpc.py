"""What a session keeps: its goal, the newest observation, and the last plan, from which the next one may start."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from serving import Serving, assert_nothing_is_held, held

from mstar_rt.client import Client, Plan, connect_async
from mstar_rt.errors import Cancelled, FailedPrecondition, InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

RNG = np.random.default_rng(10)
FRAMES = RNG.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
GOAL, OTHER_GOAL = RNG.integers(0, 256, (2, 1, 64, 64, 3), dtype=np.uint8)
STATE = np.array([0.4, 0.1, 0.3, 3.0, -0.2, 0.5, 0.3], np.float32)
GRIPPER_PINNED: dict[str, Any] = {"pinned": {3: 0.0}}
OPTIONS: dict[str, Any] = {
    "rollout_horizon": 3, "num_samples": 24, "num_elites": 6, "num_iterations": 2, **GRIPPER_PINNED,
}  # fmt: skip


def same(one: Plan, other: Plan) -> bool:
    return bool(np.allclose(one.actions, other.actions, rtol=0, atol=1e-6)) and abs(one.cost - other.cost) < 1e-6


def moved_on(actions: np.ndarray) -> np.ndarray:
    """What is left of a plan after its first action, and rest."""
    return np.concatenate([actions[1:], np.zeros_like(actions[:1])])


def test_a_warm_start_is_the_last_plan_moved_on_by_one_step(client: Client) -> None:
    def search(**options: Any) -> Plan:
        return client.plan("tiny", FRAMES[:1], GOAL, STATE, **{**OPTIONS, **options})

    with client.session("tiny", **OPTIONS) as session:
        session.set_goal(GOAL)
        session.observe(FRAMES[:1], STATE)
        first = session.plan(seed=1, warm_start=True)
        assert same(first, search(seed=1)), "there is no last plan yet: it starts cold"
        warm = session.plan(seed=2, warm_start=True)
        assert same(warm, search(seed=2, initial_mean=moved_on(first.actions)))
        assert not same(warm, search(seed=2))
        longer = session.plan(seed=3, warm_start=True, rollout_horizon=4)
        start = np.concatenate([moved_on(warm.actions), np.zeros((1, 7), np.float32)])
        assert same(longer, search(seed=3, rollout_horizon=4, initial_mean=start))
        assert same(session.plan(seed=1, warm_start=False), first)
        far = session.plan(max_displacement=0.2)
        assert np.abs(far.actions[:, :3]).max() > 0.02
        near = session.plan(max_displacement=0.02, warm_start=True)
        assert np.abs(near.actions[:, :3]).max() <= 0.02 + 1e-6
        with pytest.raises(InvalidArgument, match="both initial_mean and warm_start"):
            session.plan(warm_start=True, initial_mean=np.zeros((3, 7)))
    assert_nothing_is_held(client)


def test_sessions_keep_to_themselves(client: Client) -> None:
    with client.session("tiny", **OPTIONS) as one, client.session("tiny", **OPTIONS) as other:
        for session, goal, frame in ((one, GOAL, 0), (other, OTHER_GOAL, 1)):
            session.set_goal(goal)
            session.observe(FRAMES[frame : frame + 1], STATE)
        plans = [session.plan(seed=1) for session in (one, other)]
        assert same(plans[0], client.plan("tiny", FRAMES[:1], GOAL, STATE, seed=1, **OPTIONS))
        assert same(plans[1], client.plan("tiny", FRAMES[1:2], OTHER_GOAL, STATE, seed=1, **OPTIONS))
        warm = one.plan(seed=2, warm_start=True)
        start = moved_on(plans[0].actions)
        assert same(warm, client.plan("tiny", FRAMES[:1], GOAL, STATE, seed=2, initial_mean=start, **OPTIONS))


def test_the_newest_observation_and_goal_win(client: Client) -> None:
    with client.session("tiny", seed=5, **OPTIONS) as session:
        session.set_goal(OTHER_GOAL)
        session.set_goal(GOAL)
        first, second, third = (session.observe(FRAMES[i : i + 1], STATE) for i in range(3))
        plan = session.plan()
        assert plan.observation_id == third
        assert same(plan, client.plan("tiny", FRAMES[2:], GOAL, STATE, seed=5, **OPTIONS))
        dropped = [(event.kind, event.message_id, event.replaced_by) for event in session.events]
        assert dropped == [("observation_dropped", first, second), ("observation_dropped", second, third)]
        past = np.full((2, 7), 0.01, np.float32)
        session.observe(FRAMES, STATE, context_actions=past)
        with_past = session.plan(goal_frames=OTHER_GOAL)
        assert same(with_past, client.plan("tiny", FRAMES, OTHER_GOAL, STATE, context_actions=past, seed=5, **OPTIONS))
        steps = list(session.rollout(np.full((2, 7), 0.01)))
        alone = list(client.rollout("tiny", FRAMES, np.full((2, 7), 0.01), STATE, context_actions=past))
        for one, other in zip(steps[:-1], alone, strict=True):
            np.testing.assert_allclose(one.latent, other.latent, rtol=0, atol=1e-6)


def test_a_refused_command_leaves_the_session_as_it_was(client: Client) -> None:
    with client.session("tiny", seed=6, **OPTIONS) as session:
        with pytest.raises(FailedPrecondition, match="no observation"):
            session.plan()
        session.observe(FRAMES[:1], STATE)
        with pytest.raises(FailedPrecondition, match="no goal"):
            session.plan()
        session.set_goal(GOAL)
        plan = session.plan()
        with pytest.raises(InvalidArgument, match="expected at most num_samples"):
            session.plan(num_elites=25)
        with pytest.raises(InvalidArgument, match=r"\[1, 48, 64, 3\]"):
            session.observe(FRAMES[1:2, :48], STATE)
        with pytest.raises(InvalidArgument, match=r"\[1, 48, 64, 3\]"):
            session.set_goal(OTHER_GOAL[:, :48])
        assert same(session.plan(), plan)
    with pytest.raises(InvalidArgument, match="unknown option 'warm_star', did you mean 'warm_start'"):
        client.session("tiny", warm_star=True)
    assert_nothing_is_held(client)


def test_closing_frees_what_the_session_kept(client: Client) -> None:
    session = client.session("tiny", **OPTIONS)
    session.set_goal(GOAL)
    session.observe(FRAMES[:1], STATE)
    session.plan()
    assert {"conductor sessions", "server sessions", "worker/0 scopes"} <= held(client).keys()
    session.close()
    assert_nothing_is_held(client)


async def test_observations_and_cancels_arrive_while_a_plan_runs(serving: Serving, client: Client) -> None:
    async with connect_async(serving.address) as connected, connected.session("tiny", **OPTIONS) as session:
        await session.set_goal(GOAL)
        await session.observe(FRAMES[:1], STATE)
        stream = session.plan_stream(num_iterations=100)
        await anext(stream)
        planning = asyncio.ensure_future(session.plan(seed=7))
        newest = await session.observe(FRAMES[1:2], STATE)
        await stream.aclose()
        plan = await planning
        assert plan.observation_id == newest
        assert same(plan, client.plan("tiny", FRAMES[1:2], GOAL, STATE, seed=7, **OPTIONS))
        doomed = [asyncio.ensure_future(session.plan(num_iterations=100)) for _ in range(3)]
        await session.observe(FRAMES[:1], STATE)
        for task in doomed:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError | Cancelled)
            for end in await asyncio.gather(*doomed, return_exceptions=True)
        )
        assert (await session.plan(seed=7)).actions.shape == (3, 7)
    assert_nothing_is_held(client)
