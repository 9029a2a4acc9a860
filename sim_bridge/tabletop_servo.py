"""The tabletop driven at 20 Hz by positions: the rod's servo follows absolute targets, without a stop in between.

The planner's `TabletopPhysics.move` makes one straight move and comes to rest; a policy that acts every 50 ms must not.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim_bridge.tabletop_physics import TabletopPhysics

CONTROL_HZ = 20.0
MAX_SPEED_M_S = 0.25
MAX_TARGET_M = 1.0
"""How far from the centre of the table a target may lie: a target beyond the rod's stops drives it into them."""

_SUBSTEPS = 10
_TIMESTEP_S = 1.0 / CONTROL_HZ / _SUBSTEPS
_MAX_STEP_M = MAX_SPEED_M_S / CONTROL_HZ
# At full speed the rod is 5 mm behind its set point. One further away would wind up against an obstacle.
_MAX_LAG_M = 0.008

Snapshot = NDArray[np.float64]


class ServoTabletop(TabletopPhysics):
    """A position servo of limited speed. It is at its target when a tick ends, or on the straight way to it."""

    def __init__(self) -> None:
        super().__init__(_TIMESTEP_S)

    def follow(self, target_xy: NDArray[np.floating]) -> None:
        """Move toward a place, [2] metres in the world frame, for one tick of 50 ms."""
        actual = self._data.qpos[0:2]
        set_point = actual + _shortened(self._data.act - actual, _MAX_LAG_M)
        self._data.act[:] = set_point
        self._data.ctrl[:] = _shortened(np.asarray(target_xy, np.float64) - set_point, _MAX_STEP_M) * CONTROL_HZ
        mujoco.mj_step(self._model, self._data, nstep=_SUBSTEPS)

    def snapshot(self) -> Snapshot:
        """All of the state, for `restore`."""
        state = np.empty(mujoco.mj_stateSize(self._model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(self._model, self._data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        return state

    def restore(self, snapshot: Snapshot) -> None:
        mujoco.mj_setState(self._model, self._data, snapshot, mujoco.mjtState.mjSTATE_INTEGRATION)


def _shortened(way: NDArray[np.float64], limit_m: float) -> NDArray[np.float64]:
    length = float(np.hypot(way[0], way[1]))
    return way if length <= limit_m else way * (limit_m / length)
