"""The tabletop for policies that are told in words what to do, as a Gymnasium environment at 20 Hz.

Observation: {"images": {"top": [64, 64, 3], "wrist": [64, 64, 3]} uint8 RGB, "state": [2] float32}: the state is where
    the rod is, x and y in metres, world frame. The puck is in the pictures only.
Action [2] float32: where the rod should be when the tick ends, x and y in metres, world frame. The servo is limited to
    0.25 m/s, 12.5 mm a tick: a target further away is approached at that speed. To hold the robot, repeat the target.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from mstar_rt.errors import InvalidArgument
from sim_bridge.camera import IMAGE_SIZE_PX, draw_tabletop, draw_wrist_view
from sim_bridge.instruction_tasks import EPISODE_TICKS, HELD_TICKS, InstructionTask, sample_start, task_named
from sim_bridge.tabletop_physics import EFFECTOR_LIMIT_M
from sim_bridge.tabletop_servo import CONTROL_HZ, MAX_TARGET_M, ServoTabletop

CAMERAS = ("top", "wrist")
STATE_NAMES = ACTION_NAMES = ("x", "y")
UNITS = ("m", "m")

InstructionObservation = dict[str, Any]


class InstructionEnv(gymnasium.Env[InstructionObservation, NDArray[np.float32]]):
    """One episode of one task. `reset(seed=s)` gives the scene of seed s; same seed and actions, same episode.

    The reward is 1 in the tick that ends the episode with success, which is to keep the goal for half a second
    (terminated); after 8 s it ends without (truncated). `instruction` is what the policy should be told.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(CONTROL_HZ)}  # noqa: RUF012

    def __init__(
        self, task: str, instruction: str | None = None, render_mode: str | None = None, render_size_px: int = 256
    ) -> None:
        """`instruction`: another phrasing than the task's own.

        Raises: NotFound: no task of that name. InvalidArgument: an unknown render mode.
        """
        if render_mode not in (None, "rgb_array"):
            raise InvalidArgument(f"render_mode {render_mode!r} is not offered; use 'rgb_array' or None")
        self.task: InstructionTask = task_named(task)
        self.instruction = self.task.instruction if instruction is None else instruction
        self.render_mode = render_mode
        image = spaces.Box(0, 255, (IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3), np.uint8)
        # The rod's stops give by a millimetre.
        stop = EFFECTOR_LIMIT_M + 0.005
        self.observation_space = spaces.Dict(
            {
                "images": spaces.Dict(dict.fromkeys(CAMERAS, image)),
                "state": spaces.Box(-stop, stop, (2,), np.float32),
            }
        )
        self.action_space = spaces.Box(-MAX_TARGET_M, MAX_TARGET_M, (2,), np.float32)
        self._render_size_px = render_size_px
        self._physics = ServoTabletop()
        self._puck_start = self._physics.puck_xy
        self._num_ticks = self._num_held = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[InstructionObservation, dict[str, Any]]:
        """Place rod and puck as `seed` says, or a seed drawn from the environment's generator.

        Raises: InvalidArgument: options, of which there are none.
        """
        if options:
            raise InvalidArgument(f"reset takes no options, got {sorted(options)}")
        super().reset(seed=seed)
        effector, puck = sample_start(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._physics.place(effector, puck)
        self._puck_start = puck
        self._num_ticks = self._num_held = 0
        return self._observation(), self._info()

    def step(self, action: NDArray[np.floating]) -> tuple[InstructionObservation, float, bool, bool, dict[str, Any]]:
        """Raises: InvalidArgument: wrong shape, a NaN, or a target more than a metre off the table's centre."""
        self._physics.follow(_checked_target(action))
        self._num_ticks += 1
        self._num_held = self._num_held + 1 if self._reached() else 0
        info = self._info()
        success = info["success"]
        return self._observation(), float(success), success, not success and self._num_ticks >= EPISODE_TICKS, info

    def render(self) -> NDArray[np.uint8] | None:
        """[size, size, 3] uint8 RGB, or None without a render mode."""
        if self.render_mode is None:
            return None
        return draw_tabletop(self._physics.effector_xy, self._physics.puck_xy, self._render_size_px)

    def _observation(self) -> InstructionObservation:
        effector, puck = self._physics.effector_xy, self._physics.puck_xy
        return {
            "images": {"top": draw_tabletop(effector, puck), "wrist": draw_wrist_view(effector, puck)},
            "state": effector.astype(np.float32),
        }

    def _info(self) -> dict[str, Any]:
        """Ground truth that no policy sees: places [2] metres, whether the goal is reached now, and success."""
        effector, puck = self._physics.effector_xy, self._physics.puck_xy
        return {
            "effector_xy": effector,
            "puck_xy": puck,
            "puck_start_xy": self._puck_start.copy(),
            "reached": self._reached(),
            "success": self._num_held >= HELD_TICKS,
        }

    def _reached(self) -> bool:
        return self.task.reached(self._physics.effector_xy, self._physics.puck_xy, self._puck_start)


def _checked_target(action: NDArray[np.floating]) -> NDArray[np.float64]:
    target = np.asarray(action, np.float64)
    if target.shape != (2,):
        raise InvalidArgument(f"an action must have shape (2,), the rod's target x and y, got {target.shape}")
    if not np.isfinite(target).all():
        raise InvalidArgument(f"an action must be finite, got {target.tolist()}")
    if np.abs(target).max() > MAX_TARGET_M:
        raise InvalidArgument(
            f"a target must be within {MAX_TARGET_M} m of the table's centre, got {target.tolist()} m"
        )
    return target
