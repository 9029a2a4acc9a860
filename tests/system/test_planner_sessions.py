"""A planner's session with a history: what it sees equals a request that brings the same frames itself, in whatever order
its commands come and whoever else plans meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from serving import MAX_POLLS, Serving, assert_nothing_is_held, held

from mstar_rt.client import AsyncWorldModelSession, Client, Plan, RolloutDone, connect_async
from mstar_rt.errors import Cancelled, FailedPrecondition, InvalidArgument, Unavailable
from world_models.planning.window import Window

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

RNG = np.random.default_rng(12)
NUM_FRAMES = 9
FRAMES = RNG.integers(0, 256, (NUM_FRAMES, 64, 64, 3), dtype=np.uint8)
GOALS = RNG.integers(0, 256, (3, 1, 64, 64, 3), dtype=np.uint8)
EXECUTED = RNG.normal(0, 0.03, (NUM_FRAMES - 1, 7)).astype(np.float32)
STATES = np.concatenate([np.zeros((1, 7), np.float32), EXECUTED.cumsum(axis=0)]) + np.float32(0.3)
ACTIONS = RNG.normal(0, 0.03, (5, 7)).astype(np.float32)
OPTIONS: dict[str, Any] = {
    "rollout_horizon": 3, "num_samples": 16, "num_elites": 4, "num_iterations": 2, "pinned": {3: 0.0},
}  # fmt: skip
SAME = 2e-5
PAGES = "worker/0 pages_held/tiny/world"


def seen(num_observed: int, window: Window) -> dict[str, Any]:
    """The context that a request of its own needs to see what a session sees after so many observations."""
    start, last = window.start(num_observed), num_observed - 1
    past = {"context_actions": EXECUTED[start:last], "context_states": STATES[start:num_observed]}
    return {
        "frames": FRAMES[start:num_observed], "state": STATES[last], **(past if last > start else {}),
        "context_window": window.size, "window_stride": window.stride,
    }  # fmt: skip


def next_observation(index: int) -> dict[str, Any]:
    first = {"frames": FRAMES[index], "state": STATES[index]}
    return first | ({"executed_action": EXECUTED[index - 1]} if index else {})


def numbers_of(answers: list[Any]) -> np.ndarray:
    """All that a rollout says, in a row."""
    values = [value for step in answers if not isinstance(step, RolloutDone)
              for value in (step.latent, step.pose, step.goal_distance)]  # fmt: skip
    return np.concatenate([np.ravel(value) for value in values if value is not None])


def numbers_of_plan(plan: Plan) -> np.ndarray:
    return np.concatenate([plan.actions.ravel(), [plan.cost, plan.elite_mean_cost]])


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=SAME)


@pytest.mark.parametrize("window", [Window(1, 1), Window(3, 1), Window(4, 2), Window(4, 4), Window(32, 16)])
def test_a_history_is_what_a_request_with_those_frames_sees(client: Client, window: Window) -> None:
    """Also where it slides in the session, and again in the imagination that starts from it."""
    with client.session("tiny", context_window=window.size, window_stride=window.stride, **OPTIONS) as session:
        session.set_goal(GOALS[0])
        for index in range(NUM_FRAMES):
            session.observe(**next_observation(index))
            context = seen(index + 1, window)
            assert session.observed is not None
            assert session.observed.num_frames == len(context["frames"])
            if index in (0, 3, 4, 5, NUM_FRAMES - 1):
                alone = list(client.rollout("tiny", actions=ACTIONS, **context))
                close(numbers_of(list(session.rollout(ACTIONS))), numbers_of(alone))
        plan = session.plan(seed=4)
        alone_plan = client.plan("tiny", goal_frames=GOALS[0], seed=4, **OPTIONS, **context)
        close(numbers_of_plan(plan), numbers_of_plan(alone_plan))
        assert plan.elite_std is not None
        assert plan.elite_std.shape == (3, 4)
    assert_nothing_is_held(client)


def test_the_past_counts(client: Client) -> None:
    """Else the tests above could not fail: the same newest frame without its past, or with another action before it."""
    with client.session("tiny", context_window=4) as session:
        for index in range(3):
            session.observe(**next_observation(index))
        with_past = numbers_of(list(session.rollout(ACTIONS)))
    without = numbers_of(list(client.rollout("tiny", FRAMES[2], ACTIONS, STATES[2])))
    assert np.abs(with_past - without).max() > 1e-3
    with client.session("tiny", context_window=4) as session:
        for index in range(3):
            session.observe(**{**next_observation(index), **({"executed_action": EXECUTED[5]} if index == 1 else {})})
        assert np.abs(with_past - numbers_of(list(session.rollout(ACTIONS)))).max() > 1e-4


def test_latents_stand_in_for_the_frame(client: Client) -> None:
    latents = client.encode("tiny", FRAMES[:2]).latents
    made = []
    for in_place in (False, True):
        with client.session("tiny", context_window=4) as session:
            for index in range(2):
                observation = next_observation(index)
                if in_place:
                    observation |= {"frames": None, "latents": latents[index : index + 1]}
                session.observe(**observation)
            made.append(numbers_of(list(session.rollout(ACTIONS))))
    close(*made)


# ---- any interleaving, several at once


@dataclass(frozen=True)
class Script:
    """Commands of one session. `o` observes the next frame, `p` plans, `r` imagines, `d` asks for distances, `g` sets the
    next goal; an upper-case letter takes the command back as soon as it is sent."""

    commands: str
    window: Window


SCRIPTS = [
    Script("gorpoorprdooorpd", Window(4, 2)),
    Script("oogrorordopporod", Window(2, 1)),
    Script("gooooooooprd", Window(6, 3)),
    Script("ogPoRdogpoordop", Window(3, 3)),
]


async def play(session: AsyncWorldModelSession, script: Script) -> list[np.ndarray]:
    """What each command answered, empty where it was taken back. Commands are sent without waiting for one another."""
    num_observed, num_goals, asked = 0, 0, []
    for seed, command in enumerate(script.commands):
        kind = command.lower()
        if kind == "o":
            asked.append(asyncio.ensure_future(_observe(session, num_observed)))
            num_observed += 1
        elif kind == "g":
            asked.append(asyncio.ensure_future(_set_goal(session, num_goals % len(GOALS))))
            num_goals += 1
        elif kind == "p":
            asked.append(asyncio.ensure_future(_plan(session, seed)))
        else:
            asked.append(asyncio.ensure_future(_rollout(session, seed, "goal_distance" if kind == "d" else "latents")))
        await asyncio.sleep(0)  # so that it is sent before the next one
        if command.isupper():
            asked[-1].cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for command, answer in zip(script.commands, answers, strict=True):
        expected = (asyncio.CancelledError, Cancelled) if command.isupper() else np.ndarray
        assert isinstance(answer, expected), (command, answer)
    return [answer if isinstance(answer, np.ndarray) else np.zeros(0) for answer in answers]


async def _observe(session: AsyncWorldModelSession, index: int) -> np.ndarray:
    await session.observe(**next_observation(index))
    return np.zeros(0)


async def _set_goal(session: AsyncWorldModelSession, index: int) -> np.ndarray:
    await session.set_goal(GOALS[index])
    return np.zeros(0)


async def _plan(session: AsyncWorldModelSession, seed: int) -> np.ndarray:
    return numbers_of_plan(await session.plan(seed=seed))


async def _rollout(session: AsyncWorldModelSession, seed: int, output: str) -> np.ndarray:
    horizon = 1 + seed % len(ACTIONS)
    return numbers_of([answer async for answer in session.rollout(ACTIONS[:horizon], output=output)])


def alone(client: Client, script: Script) -> list[np.ndarray]:
    """The answers of requests that bring their frames and goals themselves, one after the other."""
    num_observed, num_goals, answers = 0, 0, []
    for seed, command in enumerate(script.commands):
        num_observed += command == "o"
        num_goals += command == "g"
        context = seen(num_observed, script.window) if num_observed else {}
        goal = {"goal_frames": GOALS[(num_goals - 1) % len(GOALS)]}
        actions = ACTIONS[: 1 + seed % len(ACTIONS)]
        if command == "p":
            answers.append(numbers_of_plan(client.plan("tiny", seed=seed, **OPTIONS, **context, **goal)))
        elif command == "r":
            answers.append(numbers_of(list(client.rollout("tiny", actions=actions, **context))))
        elif command == "d":
            steps = client.rollout("tiny", actions=actions, output="goal_distance", **context, **goal)
            answers.append(numbers_of(list(steps)))
        else:
            answers.append(np.zeros(0))
    return answers


@pytest.mark.parametrize("num_at_once", [1, 4])
async def test_any_interleaving_of_any_number_of_sessions_gives_what_each_would_get_alone(
    serving: Serving, client: Client, num_at_once: int
) -> None:
    wanted = [alone(client, script) for script in SCRIPTS]

    async def run(script: Script) -> list[np.ndarray]:
        window = {"context_window": script.window.size, "window_stride": script.window.stride}
        async with connected.session("tiny", **window, **OPTIONS) as session:
            return await play(session, script)

    async with connect_async(serving.address) as connected:
        for first in range(0, len(SCRIPTS), num_at_once):
            scripts = SCRIPTS[first : first + num_at_once]
            played = await asyncio.gather(*(run(script) for script in scripts))
            for script, got, want in zip(scripts, played, wanted[first:], strict=False):
                for command, one, other in zip(script.commands, got, want, strict=True):
                    np.testing.assert_allclose(one, other, rtol=0, atol=SAME, err_msg=f"{command} of {script}")
    assert_nothing_is_held(client)


# ---- what must not change the history


def test_what_fails_leaves_the_history_as_it_was(client: Client) -> None:
    with client.session("tiny", context_window=3, **OPTIONS) as session:
        with pytest.raises(FailedPrecondition, match="no observation: send `observe` first"):
            session.rollout(ACTIONS).__next__()
        with pytest.raises(InvalidArgument, match="executed_action is given with the first observation"):
            session.observe(FRAMES[0], STATES[0], executed_action=EXECUTED[0])
        session.observe(**next_observation(0))
        session.observe(**next_observation(1))
        before = numbers_of(list(session.rollout(ACTIONS)))
        newest = next_observation(2)
        bad: list[tuple[dict[str, Any], str]] = [
            ({"executed_action": None}, "'executed_action' is missing"),
            ({"executed_action": [np.nan] * 7}, "holds NaN"),
            ({"executed_action": [0.0] * 6}, r"'executed_action' has shape \[6\]"),
            ({"executed_action": [11.0] + [0.0] * 6}, "holds values up to 11, expected at most 10"),
            ({"state": None}, "'state' is missing"),
            ({"frames": FRAMES[2:4]}, r"'frames' has shape \[2, 64, 64, 3\], expected \[1, 64, 64, 3\]"),
            ({"frames": FRAMES[2, :48]}, r"'frames' has shape \[1, 48, 64, 3\]"),
            ({"context_actions": EXECUTED[:0]}, "the observation has actions of past frames"),
            ({"context_states": STATES[:1]}, "the observation has states of past frames"),
            ({"extrinsics": np.zeros((1, 6))}, "unknown tensor 'extrinsics'"),
        ]
        for wrong, sentence in bad:
            with pytest.raises(InvalidArgument, match=sentence):
                session.observe(**{**newest, **wrong})
        with pytest.raises(InvalidArgument, match="the limit of this model is 32"):
            list(session.rollout(np.zeros((33, 7))))
        with pytest.raises(FailedPrecondition, match="the session has no goal"):
            session.plan()
        next(session.rollout(ACTIONS)).step  # noqa: B018  taken back after its first step
        close(numbers_of(list(session.rollout(ACTIONS))), before)
        session.observe(**newest)
        close(numbers_of(list(session.rollout(ACTIONS))), numbers_of(list(
            client.rollout("tiny", actions=ACTIONS, **seen(3, Window(3, 1)))
        )))  # fmt: skip
    assert_nothing_is_held(client)


def test_a_session_holds_the_pages_of_its_window_and_no_more(client: Client) -> None:
    """A frame takes one page. The newest is not in the cache yet; what is imagined lets go of its pages at the end."""
    with client.session("tiny", context_window=4, window_stride=2, **OPTIONS) as session:
        session.set_goal(GOALS[0])
        for index in range(NUM_FRAMES):
            session.observe(**next_observation(index))
            session.plan()
            list(session.rollout(ACTIONS))
            assert session.observed is not None
            pages = pages_held(client, session.observed.num_frames - 1)
            assert pages == session.observed.num_frames - 1, f"after {index + 1} observations"
    assert_nothing_is_held(client)


def pages_held(client: Client, expected: int) -> float:
    """A release may still be on its way when the answer is there, so it is asked for again, a bounded number of times."""
    for _ in range(MAX_POLLS):
        pages = held(client).get(PAGES, 0.0)
        if pages == expected:
            break
    return pages


def test_a_history_that_is_lost_with_its_worker_is_no_other_history(serving: Serving, client: Client) -> None:
    session = client.session("tiny", context_window=4)
    session.observe(**next_observation(0))
    session.observe(**next_observation(1))
    os.kill(serving.worker_pids()[0], signal.SIGKILL)
    with pytest.raises(Unavailable):
        list(session.rollout(ACTIONS))
    client.wait_until_serving(60.0, "tiny")
    for _ in range(2):
        with pytest.raises(Unavailable, match="open a new session"):
            session.observe(**next_observation(2))
        with pytest.raises(Unavailable, match="open a new session"):
            list(session.rollout(ACTIONS))
    session.close()
    with client.session("tiny", context_window=4) as another:
        another.observe(**next_observation(0))
        close(numbers_of(list(another.rollout(ACTIONS))), numbers_of(list(
            client.rollout("tiny", actions=ACTIONS, **seen(1, Window(4, 2)))
        )))  # fmt: skip
    assert_nothing_is_held(client)
