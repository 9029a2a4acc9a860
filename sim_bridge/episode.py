"""One episode of one robot: a tabletop task, driven by plans that a served world model makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_rt.client import AsyncClient, AsyncWorldModelSession, Plan
from mstar_rt.errors import MstarError
from sim_bridge.control_loop import ControlLoop, ControlReport
from sim_bridge.tabletop import ACTION_DIM, TabletopEnv
from sim_bridge.tasks import TaskKind

HOLD = np.zeros(ACTION_DIM, np.float32)


@dataclass(frozen=True)
class EpisodeSettings:
    """How an episode is run. `planner` are the options of each plan; `budget_ms` None lets a plan take its time."""

    model: str
    control_hz: float
    planner: Mapping[str, Any]
    budget_ms: float | None = None
    record: bool = False


@dataclass
class EpisodeResult:
    """What became of one episode. Distances are to the goal, metres; latencies as the robot saw them, milliseconds."""

    kind: TaskKind
    seed: int
    start_distance_m: float = float("nan")
    final_distance_m: float = float("nan")
    success: bool = False
    num_ticks: int = 0
    num_missed: int = 0
    plan_ms: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    error: str | None = None
    frames: list[NDArray[np.uint8]] = field(default_factory=list)


class TabletopRobot:
    """A robot for ControlLoop: the environment, and what a person wants to see of it."""

    def __init__(self, env: TabletopEnv, observation: dict[str, Any], result: EpisodeResult) -> None:
        self._env = env
        self._observation = observation
        self._result = result

    def observe(self) -> dict[str, Any]:
        return self._observation

    def act(self, action: NDArray[np.floating]) -> None:
        self._observation, _, _, _, info = self._env.step(action)
        self._result.final_distance_m = info["distance_m"]
        self._result.success = info["success"]
        frame = self._env.render()
        if frame is not None:
            self._result.frames.append(frame)


async def run_episode(
    client: AsyncClient,
    kind: TaskKind,
    seed: int,
    settings: EpisodeSettings,
    on_plan: Callable[[EpisodeResult], None] = lambda result: None,
) -> EpisodeResult:
    """Run the task of `seed` to its last tick. An error of the runtime ends the episode and is kept in the result."""
    env = TabletopEnv(kind, render_mode="rgb_array" if settings.record else None)
    observation, info = env.reset(seed=seed)
    result = EpisodeResult(kind, seed, info["distance_m"], info["distance_m"])
    robot = TabletopRobot(env, observation, result)
    try:
        async with client.session(settings.model) as session:
            await session.set_goal(env.task.goal_image)
            policy = _Planner(session, settings, result, on_plan)
            loop = ControlLoop(robot, policy, control_hz=settings.control_hz, hold=HOLD)
            _account(result, await loop.run(env.task.num_steps))
    except MstarError as error:
        result.error = str(error)
        result.success = False
    finally:
        env.close()
    return result


class _Planner:
    """The policy of the loop: send the newest picture, ask for a plan that starts from the last one."""

    def __init__(
        self,
        session: AsyncWorldModelSession,
        settings: EpisodeSettings,
        result: EpisodeResult,
        on_plan: Callable[[EpisodeResult], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._result = result
        self._on_plan = on_plan

    async def __call__(self, observation: Mapping[str, Any]) -> Sequence[NDArray[np.floating]]:
        asked_s = time.monotonic()
        await self._session.observe(observation["image"], observation["state"])
        plan = await self._session.plan(budget_ms=self._settings.budget_ms, **self._settings.planner)
        self._result.plan_ms.append((time.monotonic() - asked_s) * 1e3)
        self._result.plans.append(plan)
        self._on_plan(self._result)
        return list(plan.actions)


def _account(result: EpisodeResult, report: ControlReport) -> None:
    result.num_ticks = report.num_ticks
    result.num_missed = report.num_missed


def random_success_rate(kind: TaskKind, seeds: Sequence[int]) -> float:
    """Share of tasks that uniformly random actions solve: what success means nothing below."""
    num_solved = 0
    for seed in seeds:
        env = TabletopEnv(kind)
        env.reset(seed=seed)
        env.action_space.seed(seed)
        truncated, info = False, {"success": False}
        while not truncated:
            _, _, _, truncated, info = env.step(env.action_space.sample())
        num_solved += info["success"]
        env.close()
    return num_solved / len(seeds)
