"""Tasks of the tabletop that are said in words. All start from the same scenes: the words alone tell them apart.

The puck starts in the middle of the table, the rod anywhere. A side of the table is its outer quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mstar_rt.errors import NotFound, nearest
from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, EFFECTOR_LIMIT_M

SIDE_M = 0.15
"""The puck's centre is this far from the centre of the table when the puck is on a side."""
CORNER_XY = (-0.20, 0.20)
CORNER_DISTANCE_M = 0.03
TOUCH_GAP_M = 0.008
TOUCH_SHIFT_M = 0.02
"""A puck that was pushed further than this was not just touched."""

PUCK_START_M = 0.10
START_GAP_M = 0.02
EPISODE_TICKS = 160
"""8 s."""
HELD_TICKS = 10
"""Success is to keep the goal for 0.5 s."""

_START_STREAM = 0x1A57

Place = NDArray[np.float64]


@dataclass(frozen=True)
class InstructionTask:
    """`phrasings` are trained on, the first is the task's own text; `held_out_phrasings` are not trained on.

    `reached(effector_xy, puck_xy, puck_start_xy)`: places [2], metres, world frame; the last is where the puck was when
    the episode began.
    """

    name: str
    phrasings: tuple[str, ...]
    held_out_phrasings: tuple[str, ...]
    reached: Callable[[Place, Place, Place], bool]
    push_direction: tuple[float, float] | None = None

    @property
    def instruction(self) -> str:
        return self.phrasings[0]


def task_named(name: str) -> InstructionTask:
    """Raises: NotFound: no task has that name."""
    if name not in TASKS:
        raise NotFound(f"no task that is said in words is called {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]


def sample_start(seed: int) -> tuple[Place, Place]:
    """Where the rod and the puck start in the episode of `seed`, whatever its task: places [2], metres."""
    return draw_start(np.random.default_rng([_START_STREAM, seed]))


def draw_start(rng: np.random.Generator) -> tuple[Place, Place]:
    puck = rng.uniform(-PUCK_START_M, PUCK_START_M, 2)
    while True:
        effector = rng.uniform(-EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M, 2)
        if np.linalg.norm(effector - puck) > CONTACT_DISTANCE_M + START_GAP_M:
            return effector, puck


def _touches(effector: Place, puck: Place, puck_start: Place) -> bool:
    near = float(np.linalg.norm(effector - puck)) <= CONTACT_DISTANCE_M + TOUCH_GAP_M
    return near and float(np.linalg.norm(puck - puck_start)) <= TOUCH_SHIFT_M


def _in_corner(effector: Place, puck: Place, puck_start: Place) -> bool:
    return float(np.linalg.norm(effector - CORNER_XY)) <= CORNER_DISTANCE_M


def _push(side: str, direction: tuple[float, float]) -> InstructionTask:
    return InstructionTask(
        f"push_{side}",
        (
            f"push the puck to the {side} side",
            f"push the puck to the {side}",
            f"move the blue puck to the {side} side",
            f"slide the puck to the {side} edge",
            f"bring the disc to the {side}",
        ),
        (f"slide the disc to the {side} side", f"push the blue disc to the {side}"),
        lambda effector, puck, puck_start: float(np.dot(puck, direction)) >= SIDE_M,
        direction,
    )


_ALL = (
    _push("left", (-1.0, 0.0)),
    _push("right", (1.0, 0.0)),
    _push("top", (0.0, 1.0)),
    InstructionTask(
        "touch",
        ("touch the puck", "touch the blue puck", "go to the puck", "move to the puck and touch it", "reach the disc"),
        ("touch the disc", "go to the blue disc"),
        _touches,
    ),
    InstructionTask(
        "corner",
        (
            "move to the upper left corner",
            "go to the upper left corner",
            "move the rod to the upper left corner",
            "go to the corner at the upper left",
            "reach the upper left corner",
        ),
        ("bring the rod to the upper left corner", "move to the corner at the upper left"),
        _in_corner,
    ),
)
TASKS: dict[str, InstructionTask] = {task.name: task for task in _ALL}
