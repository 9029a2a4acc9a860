"""`drive`: any Gymnasium environment, or a vector of them, in the hands of a served policy."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from mstar_rt.client import ActionChunk, Client, ControlSession, PolicyInfo, Recording, RobotAction
from mstar_rt.client.arguments import MAX_BUDGET_MS, MAX_TIMEOUT_S
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from sim_bridge.gym_mapping import GymForm, GymMapping, Picked
from sim_bridge.gym_report import GymEpisode, GymReport, success_of
from sim_bridge.gym_world import Moved, World, world_of

FROM_ONE_ANOTHER = ("guided", "guided_identity", "prefix")
"""Chunking in which a chunk is made for a delay."""


LOCKSTEP_HZ = 0.01
"""Chunks per second that the server is asked to keep the time for in lockstep: what stands still can wait for robots
that do not."""


class RobotLog(Protocol):
    """What is told of each robot, tick by tick; see `sim_bridge.rerun_log`."""

    def seen(self, robot: int, tick: int, images: dict[str, np.ndarray], state: np.ndarray | None) -> None: ...

    def acted(self, robot: int, tick: int, action: RobotAction) -> None: ...

    def chunk(self, robot: int, tick: int, chunk: ActionChunk) -> None: ...


def drive(
    client: Client,
    model: str,
    env: Any,
    mapping: GymMapping | None = None,
    *,
    episodes: int = 1,
    seed: int | None = None,
    control_hz: float | None = None,
    execute: int | None = None,
    instruction: str | Sequence[str] | None = None,
    realtime: bool = False,
    clip_actions: bool = False,
    success: Callable[[dict[str, Any]], bool | None] = success_of,
    timeout_s: float = 60.0,
    noise_seed: int | None = None,
    normalization: str | None = None,
    record: str | os.PathLike[str] | None = None,
    log: RobotLog | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **control: Any,
) -> GymReport:
    """Drive every robot of `env` through `episodes` episodes, each on a control session of its own, all at once.

    In lockstep, the default, the environment stands still while a chunk is made: with `seed` and `noise_seed` the
    same motion comes out each time. In real time (`realtime`) it goes on at `control_hz`, as a robot does.

    Args:
        env: a gymnasium.Env, or a gymnasium.vector.VectorEnv: several robots.
        mapping: what of an observation is which camera and the state. None: what has their names.
        seed: of the first episode, see `sim_bridge.gym_world`.
        control_hz: in real time. None: the environment's `render_fps`.
        execute: actions of a chunk that are executed before the next one is asked for. None: all of them.
        instruction: for policies that take one; a sequence has one for each robot.
        clip_actions: into the bounds of the action space; without, an action beyond them goes to the environment as it
            is. Both are counted.
        success: from the `info` of an episode's last step; None: it does not say. By default its `is_success` or
            `success`.
        timeout_s: for one chunk, in lockstep, and for the first one of an episode.
        noise_seed: of the policy's noise; robot i has `noise_seed` + i.
        normalization: the policy's statistics to use, where it has several.
        record: a file for `mstar-rt replay`; with several robots "run.rec" becomes "run-0.rec", "run-1.rec", ...
        control: further arguments of `Client.control`.
    Raises:  FailedPrecondition: environment and policy do not fit; the message has every difference.
             InvalidArgument: an argument is no good.  MstarError: a session has ended, or an observation has no chunk.
    """
    world = world_of(env, seed)
    policy = client.describe(model).policy
    if policy is None:
        raise FailedPrecondition(f"model {model!r} is no policy, so it cannot drive an environment")
    observations = world.begin()
    mapping = mapping or GymMapping()
    frames = world.frames() if mapping.renders else [None] * world.num_robots
    form = GymForm(mapping, policy, observations[0], frames[0], world.action_space)
    settings = _settings(world, policy, control_hz, execute, realtime, control)
    settings["schema"] = dataclasses.replace(form.schema, normalization=normalization)
    instructions = _per_robot(instruction, world.num_robots)
    with contextlib.ExitStack() as stack:
        robots = []
        for index in range(world.num_robots):
            session = client.control(
                model, instruction=instructions[index], record=_file_of(record, index, world.num_robots),
                seed=None if noise_seed is None else noise_seed + index, **settings,
            )  # fmt: skip
            robots.append(_Robot(stack.enter_context(session), index, episodes, success, log))
        pool = stack.enter_context(ThreadPoolExecutor(len(robots), "gym-robot"))
        clip = world.action_space if clip_actions else None
        run = _Run(world, form, robots, pool, timeout_s, clip, renders=mapping.renders)
        if realtime:
            num_late = run.realtime(observations, settings["control_hz"], clock or MonotonicClock(), sleep)
        else:
            num_late = run.lockstep(observations)
        ended = [episode for robot in robots for episode in robot.ended]
        return GymReport(ended, [robot.session.stats for robot in robots], num_late)


class _Robot:
    """One robot's session and the episode that it is in."""

    def __init__(
        self,
        session: ControlSession,
        index: int,
        num_episodes: int,
        success: Callable[[dict[str, Any]], bool | None],
        log: RobotLog | None,
    ) -> None:
        self.session = session
        self.ended: list[GymEpisode] = []
        self.episode = GymEpisode(index, 0)
        self.begins = True
        self.last_action: Any = None
        self._tick = 0
        self._chunk_seq: int | None = None
        self._num_episodes = num_episodes
        self._success = success
        self._log = log

    @property
    def is_done(self) -> bool:
        return len(self.ended) >= self._num_episodes

    def heard(self, seen: Picked, action: RobotAction) -> None:
        self.episode.num_held += action.kind != "chunk"
        if self._log is not None:
            self._log.seen(self.episode.robot, self._tick, seen.images, seen.state)
            self._log.acted(self.episode.robot, self._tick, action)
            latest = self.session.latest()
            if latest is not None and latest.seq != self._chunk_seq:
                self._chunk_seq = latest.seq
                self._log.chunk(self.episode.robot, self._tick, latest)
        self._tick += 1

    def moved(self, moved: Moved) -> None:
        if self.is_done:
            return
        if moved.counts:
            self.episode.num_steps += 1
            self.episode.total_reward += moved.reward
        if moved.ends:
            self.episode.success = self._success(moved.info)
            self.episode.truncated = moved.truncated
            self.ended.append(self.episode)
            self.episode = GymEpisode(self.episode.robot, self.episode.number + 1)
        if moved.begins and not self.is_done:
            self.session.reset()
            self.begins = True


class _Run:
    def __init__(
        self,
        world: World,
        form: GymForm,
        robots: Sequence[_Robot],
        pool: ThreadPoolExecutor,
        timeout_s: float,
        clip: spaces.Space[Any] | None,
        renders: bool,
    ) -> None:
        self._world = world
        self._form = form
        self._robots = robots
        self._pool = pool
        self._timeout_s = timeout_s
        self._clip = clip
        self._renders = renders

    def lockstep(self, observations: list[Any]) -> int:
        def act(robot: _Robot, seen: Picked) -> RobotAction | None:
            if robot.is_done:
                return None
            return robot.session.act_in_lockstep(self._timeout_s, seen.images, seen.state)

        while not all(robot.is_done for robot in self._robots):
            seen = self._seen(observations)
            observations = self._step(seen, list(self._pool.map(act, self._robots, seen)))
        return 0

    def realtime(self, observations: list[Any], control_hz: float, clock: Clock, sleep: Callable[[float], None]) -> int:
        """Returns how many ticks began more than a period late: none is made up for."""
        num_late, period_ns = 0, int(1e9 / control_hz)
        due_ns = clock.now_ns()
        while not all(robot.is_done for robot in self._robots):
            seen = self._seen(observations)
            if any(robot.begins for robot in self._robots):
                list(self._pool.map(self._wait, self._robots, seen))
                due_ns = clock.now_ns()
            actions = [
                None if robot.is_done else robot.session.act(each.images, each.state)
                for robot, each in zip(self._robots, seen, strict=True)
            ]
            if any(action is not None and action.action is not None for action in actions):
                observations = self._step(seen, actions)
            else:
                self._heard(seen, actions)
            due_ns += period_ns
            left_ns = due_ns - clock.now_ns()
            if left_ns < -period_ns:
                num_late, due_ns = num_late + 1, clock.now_ns()
            sleep(max(0.0, left_ns / 1e9))
        return num_late

    def _wait(self, robot: _Robot, seen: Picked) -> None:
        if robot.begins and not robot.is_done:
            robot.session.wait_for_first_action(self._timeout_s, seen.images, seen.state)
        robot.begins = False

    def _seen(self, observations: Sequence[Any]) -> list[Picked]:
        frames = self._world.frames() if self._renders else [None] * len(observations)
        return [self._form.picked(each, frame) for each, frame in zip(observations, frames, strict=True)]

    def _step(self, seen: Sequence[Picked], actions: Sequence[RobotAction | None]) -> list[Any]:
        self._heard(seen, actions)
        moved = self._world.step([self._given(*each) for each in zip(self._robots, actions, strict=True)])
        for robot, each in zip(self._robots, moved, strict=True):
            robot.moved(each)
        return [each.observation for each in moved]

    def _heard(self, seen: Sequence[Picked], actions: Sequence[RobotAction | None]) -> None:
        for robot, each, action in zip(self._robots, seen, actions, strict=True):
            if action is not None:
                robot.heard(each, action)

    def _given(self, robot: _Robot, action: RobotAction | None) -> Any:
        """What the environment gets. A robot that has done its episodes repeats itself, unobserved."""
        if action is None:
            return robot.last_action
        assert action.action is not None, "several robots have something to do while they hold"
        given = self._form.action(action.action)
        space = self._world.action_space
        if isinstance(space, spaces.Box) and not space.contains(given):
            robot.episode.num_outside += 1
            if self._clip is not None:
                given = np.clip(given, space.low, space.high)
        robot.last_action = given
        return given


def _settings(
    world: World,
    policy: PolicyInfo,
    control_hz: float | None,
    execute: int | None,
    realtime: bool,
    control: dict[str, Any],
) -> dict[str, Any]:
    for name, instead in (("replan_every", "execute"), ("seed", "noise_seed"), ("schema", "mapping")):
        if name in control:
            raise InvalidArgument(f"{name} is given: use {instead}")
    replan_every = execute or policy.action_horizon
    if realtime:
        hz = control_hz or world.control_hz
        if hz is None:
            raise InvalidArgument("the environment does not say its rate (metadata render_fps): give control_hz")
        if world.num_robots > 1 and (control.get("hold") is None or isinstance(control["hold"], str)):
            raise InvalidArgument(
                "several robots in real time step together: give as `hold` an action that keeps one still"
            )
        return {"control_hz": hz, "replan_every": replan_every, **control}
    settings = {"control_hz": LOCKSTEP_HZ * replan_every, "replan_every": replan_every, **control}
    if control.get("chunking") in FROM_ONE_ANOTHER:
        settings.setdefault("delay", 0)
    return {"max_action_age_s": MAX_TIMEOUT_S, "budget_ms": MAX_BUDGET_MS, **settings}


def _per_robot(instruction: str | Sequence[str] | None, num_robots: int) -> list[str | None]:
    if instruction is None or isinstance(instruction, str):
        return [instruction] * num_robots
    if len(instruction) != num_robots:
        raise InvalidArgument(
            f"there are {len(instruction)} instructions for {num_robots} robots: give one, or one each"
        )
    return list(instruction)


def _file_of(record: str | os.PathLike[str] | None, index: int, num_robots: int) -> Recording | None:
    if record is None:
        return None
    path = Path(record)
    return Recording(path if num_robots == 1 else path.with_name(f"{path.stem}-{index}{path.suffix}"))
