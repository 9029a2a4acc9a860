"""One Gymnasium environment, or a vector of them, as a world with one or several robots.

Episodes follow each other: what a step returns for a robot whose episode has ended is the first observation of the next
one, at once or (an environment that resets itself in its next step) one step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from mstar_rt.errors import InvalidArgument


@dataclass(frozen=True)
class Moved:
    """One robot's step. `begins`: `observation` is the first one of another episode. `counts`: it was a step of an
    episode, not the one in which an environment resets itself. `info` is that of the step itself.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    begins: bool = False
    counts: bool = True

    @property
    def ends(self) -> bool:
        return self.counts and (self.terminated or self.truncated)


class World(Protocol):
    num_robots: int
    action_space: spaces.Space[Any]
    """Of one robot."""
    control_hz: float | None

    def begin(self) -> list[Any]:
        """The first observation of each robot's first episode."""

    def step(self, actions: Sequence[Any]) -> list[Moved]: ...

    def frames(self) -> list[Any]:
        """What is rendered, for each robot; None where nothing is."""


class SingleWorld:
    """Episode i has the seed `seed` + i; None: seeds that the environment draws."""

    num_robots = 1

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int | None) -> None:
        self._env = env
        self._seed = seed
        self.action_space = env.action_space
        self.control_hz = _control_hz(env.metadata)

    def begin(self) -> list[Any]:
        return [self._reset()]

    def step(self, actions: Sequence[Any]) -> list[Moved]:
        observation, reward, terminated, truncated, info = self._env.step(actions[0])
        if terminated or truncated:
            observation = self._reset()
        return [Moved(observation, float(reward), terminated, truncated, info, begins=terminated or truncated)]

    def frames(self) -> list[Any]:
        return [_frame(self._env.render() if self._env.render_mode == "rgb_array" else None)]

    def _reset(self) -> Any:
        observation, _ = self._env.reset(seed=self._seed)
        if self._seed is not None:
            self._seed += 1
        return observation


class VectorWorld:
    """Robot i begins with the seed `seed` + i; the environments draw those of the episodes that follow."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], seed: int | None) -> None:
        self._envs = envs
        self._seed = seed
        self.num_robots = envs.num_envs
        self.action_space = envs.single_action_space
        self.control_hz = _control_hz(envs.metadata)
        self._mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._resets_itself = np.zeros(self.num_robots, bool)
        """In the next step, whatever its action is."""

    def begin(self) -> list[Any]:
        observations, _ = self._envs.reset(seed=self._seed)
        return self._each(observations)

    def step(self, actions: Sequence[Any]) -> list[Moved]:
        room: Any = create_empty_array(self.action_space, self.num_robots)
        batch = concatenate(self.action_space, actions, room)
        observations, rewards, terminated, truncated, infos = self._envs.step(batch)
        over = np.logical_or(terminated, truncated)
        begins, counts = np.zeros_like(over), ~self._resets_itself
        if self._mode is AutoresetMode.NEXT_STEP:
            begins, self._resets_itself = self._resets_itself, over
        elif self._mode is AutoresetMode.SAME_STEP:
            begins = over
        elif over.any():
            begins = over
            observations, _ = self._envs.reset(options={"reset_mask": over})
        return [
            Moved(
                observation, float(rewards[index]), bool(terminated[index]), bool(truncated[index]),
                _info_of(infos, index, bool(over[index])), bool(begins[index]), bool(counts[index]),
            )
            for index, observation in enumerate(self._each(observations))
        ]  # fmt: skip

    def frames(self) -> list[Any]:
        frames = self._envs.render() if self._envs.render_mode == "rgb_array" else None
        return [None if frames is None else _frame(frames[index]) for index in range(self.num_robots)]

    def _each(self, observations: Any) -> list[Any]:
        return list(iterate(self._envs.observation_space, observations))


def world_of(env: object, seed: int | None) -> World:
    """Raises:  InvalidArgument: it is no environment."""
    if isinstance(env, VectorEnv):
        return VectorWorld(env, seed)
    if isinstance(env, gymnasium.Env):
        return SingleWorld(env, seed)
    raise InvalidArgument(f"env is a {type(env).__name__}, expected a gymnasium.Env or a gymnasium.vector.VectorEnv")


def _control_hz(metadata: dict[str, Any]) -> float | None:
    """Environments say with which rate they are to be shown, which is that of their steps."""
    fps = metadata.get("render_fps")
    return None if fps is None else float(fps)


def _frame(frame: Any) -> Any:
    return None if frame is None else np.asarray(frame)


def _info_of(infos: dict[str, Any], index: int, over: bool) -> dict[str, Any]:
    """One robot's part: a vector's infos are arrays, with a mask of whom they are of under the name after "_". Where an
    environment resets itself in the same step, what the episode ended with is in "final_info"."""
    if over and "final_info" in infos:
        infos = infos["final_info"]
    found = {}
    for name, values in infos.items():
        has_it = infos.get(f"_{name}")
        if name.startswith("_") or (has_it is not None and not has_it[index]):
            continue
        found[name] = _info_of(values, index, False) if isinstance(values, dict) else values[index]
    return found
