"""A world of one number, which the toy policy moves: small enough to be predicted."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 16


class ToyEnv(gymnasium.Env[Any, Any]):
    """`place` [2] is what the last action was; the seed is where it begins. An episode lasts `num_steps`, and ends well if
    the seed is even.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, num_steps: int = 5, render_mode: str | None = None, size: int = SIZE) -> None:
        image = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "eyes": spaces.Dict({"top": image, "grey": spaces.Box(0, 255, (size, size), np.uint8)}),
                "joints": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                "gripper": spaces.Box(0, 1, (), np.float32),
            }
        )
        self.action_space = spaces.Box(-3, 3, (2,), np.float32)
        self.render_mode = render_mode
        self._size = size
        self._num_steps = num_steps
        self.actions: list[np.ndarray] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._left = self._num_steps
        self._place = np.array([seed or 0, 0.0])
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float32
        self.actions.append(action)
        self._place = action.astype(np.float64)
        self._left -= 1
        well = (self.seeds[-1] or 0) % 2 == 0
        over = self._left == 0
        return self._observation(), 1.0, over and well, over and not well, {"success": over and well}

    def render(self) -> np.ndarray:
        return np.full((self._size, self._size, 3), 77, np.uint8)

    def _observation(self) -> dict[str, Any]:
        brightness = int(abs(self._place[0]) * 10) % 256
        return {
            "eyes": {
                "top": np.full((self._size, self._size, 3), brightness, np.uint8),
                "grey": np.zeros((self._size, self._size), np.uint8),
            },
            "joints": self._place,
            "gripper": np.float32(0.5),
        }
