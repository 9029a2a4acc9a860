"""The simulated tabletop as a Gymnasium environment, in the seven-number convention of V-JEPA 2-AC.

State  [7] float32: x, y, z (metres, world frame), roll, pitch, yaw (radians), gripper closedness (0 open, 1 closed).
Action [7] float32: commanded displacement of each of these over one control period, at most 0.05 m in x and in y. The
rod cannot move in the other five dimensions: their range is zero, and anything else there is refused, not ignored.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from sim_bridge.camera import IMAGE_SIZE_PX, draw_tabletop, mark_goal
from sim_bridge.tabletop_physics import CONTROL_PERIOD_S, MAX_DISPLACEMENT_M, TABLE_HALF_M, TabletopPhysics
from sim_bridge.tasks import SUCCESS_DISTANCE_M, Task, TaskKind, sample_task

STATE_DIM = ACTION_DIM = 7
_MOVABLE_DIMS = 2
_DIM_NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
# float32 holds 0.05 as a number a little above it.
_LIMIT_TOLERANCE_M = 1e-6

Observation = dict[str, NDArray[Any]]


class TabletopEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """One episode of one task. `reset(seed=s)` gives the task of seed s; same seed and actions, same episode.

    Rewards are minus the distance to the goal, metres. An episode is never terminated early, so that success means to
    stay at the goal; it is truncated after the task's number of steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / CONTROL_PERIOD_S)}  # noqa: RUF012

    def __init__(
        self, task_kind: TaskKind = "reach", render_mode: str | None = None, render_size_px: int = 256
    ) -> None:
        """Raises: NotFound: no task of that kind. InvalidArgument: an unknown render mode."""
        if render_mode not in (None, "rgb_array"):
            raise InvalidArgument(f"render_mode {render_mode!r} is not offered; use 'rgb_array' or None")
        sample_task(task_kind, 0)
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            {
                "image": spaces.Box(0, 255, (IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3), np.uint8),
                "state": spaces.Box(*_state_bounds(), dtype=np.float32),
            }
        )
        limit = np.zeros(ACTION_DIM, np.float32)
        limit[:_MOVABLE_DIMS] = MAX_DISPLACEMENT_M
        self.action_space = spaces.Box(-limit, limit, dtype=np.float32)
        self._task_kind = task_kind
        self._render_size_px = render_size_px
        self._physics = TabletopPhysics()
        self._task: Task | None = None
        self._num_steps = 0

    @property
    def task(self) -> Task:
        """Raises: FailedPrecondition: before the first reset."""
        if self._task is None:
            raise FailedPrecondition("the environment has no task yet; call reset(seed=...) first")
        return self._task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the task of `seed`, or of a seed drawn from the environment's generator.

        Raises: InvalidArgument: options, of which there are none.
        """
        if options:
            raise InvalidArgument(f"reset takes no options, got {sorted(options)}")
        super().reset(seed=seed)
        task_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._task = sample_task(self._task_kind, task_seed)
        self._physics.place(self._task.start_effector_xy, self._task.start_puck_xy)
        self._num_steps = 0
        return self._observation(), self._info(np.zeros(ACTION_DIM, np.float32))

    def step(self, action: NDArray[np.floating]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Raises: InvalidArgument: wrong shape, a NaN, an immovable dimension, or a displacement over the limit."""
        task = self.task
        before = self._state()
        self._physics.move(_checked_displacement(action))
        self._num_steps += 1
        info = self._info(self._state() - before)
        return self._observation(), -info["distance_m"], False, self._num_steps >= task.num_steps, info

    def render(self) -> NDArray[np.uint8] | None:
        """[size, size, 3] uint8 RGB with the goal outlined, or None without a render mode."""
        if self.render_mode is None:
            return None
        image = draw_tabletop(self._physics.effector_xy, self._physics.puck_xy, self._render_size_px)
        mark_goal(image, self.task.goal_xy, self.task.goal_radius_m)
        return image

    def _observation(self) -> Observation:
        return {
            "image": draw_tabletop(self._physics.effector_xy, self._physics.puck_xy),
            "state": self._state(),
        }

    def _state(self) -> NDArray[np.float32]:
        state = np.zeros(STATE_DIM, np.float32)
        state[:_MOVABLE_DIMS] = self._physics.effector_xy
        return state

    def _info(self, realised: NDArray[np.float32]) -> dict[str, Any]:
        """Ground truth that no policy sees: places [2] metres, the displacement [7] really made, and success."""
        effector, puck = self._physics.effector_xy, self._physics.puck_xy
        distance = self.task.distance_m(effector, puck)
        return {
            "effector_xy": effector,
            "puck_xy": puck,
            "goal_xy": self.task.goal_xy.copy(),
            "displacement": realised,
            "distance_m": distance,
            "success": distance <= SUCCESS_DISTANCE_M,
        }


def _checked_displacement(action: NDArray[np.floating]) -> NDArray[np.float64]:
    values = np.asarray(action, dtype=np.float64)
    if values.shape != (ACTION_DIM,):
        raise InvalidArgument(f"an action must have shape ({ACTION_DIM},), got {values.shape}; send {_DIM_NAMES}")
    if not np.isfinite(values).all():
        raise InvalidArgument(f"an action must be finite, got {values.tolist()}")
    for dim in range(_MOVABLE_DIMS, ACTION_DIM):
        if values[dim] != 0.0:
            raise InvalidArgument(
                f"the tabletop's rod cannot move in {_DIM_NAMES[dim]}: action[{dim}] must be 0, got {values[dim]:g}"
            )
    for dim in range(_MOVABLE_DIMS):
        if abs(values[dim]) > MAX_DISPLACEMENT_M + _LIMIT_TOLERANCE_M:
            raise InvalidArgument(
                f"action[{dim}] ({_DIM_NAMES[dim]}) must be within +-{MAX_DISPLACEMENT_M} m for one control period, "
                f"got {values[dim]:g}"
            )
    return values[:_MOVABLE_DIMS]


def _state_bounds() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = np.zeros(STATE_DIM, np.float32), np.zeros(STATE_DIM, np.float32)
    low[:_MOVABLE_DIMS], high[:_MOVABLE_DIMS] = -TABLE_HALF_M, TABLE_HALF_M
    return low, high
