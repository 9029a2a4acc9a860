"""Contact physics of the tabletop: a rod that is moved in x and y, and a puck that it can push.

World frame: metres, origin at the centre of the table, x to the right and y away from the viewer, z up.
One control period is `CONTROL_PERIOD_S` of simulated time, whatever the wall clock says.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

TABLE_HALF_M = 0.30
EFFECTOR_RADIUS_M = 0.032
PUCK_RADIUS_M = 0.048
CONTACT_DISTANCE_M = EFFECTOR_RADIUS_M + PUCK_RADIUS_M
EFFECTOR_LIMIT_M = TABLE_HALF_M - EFFECTOR_RADIUS_M
PUCK_LIMIT_M = TABLE_HALF_M - PUCK_RADIUS_M
MAX_DISPLACEMENT_M = 0.05
CONTROL_PERIOD_S = 0.24

_TIMESTEP_S = 0.004
_MOVE_SUBSTEPS = 48
_SETTLE_SUBSTEPS = 12
_MOVE_S = _MOVE_SUBSTEPS * _TIMESTEP_S
_PUCK_HALF_HEIGHT_M = 0.015

# The rod is a velocity-integrating position servo (stiff, near critically damped), so that one commanded displacement
# is a straight move at constant speed. The puck slides, lifts and turns but cannot tip: it rests on the table by
# contact, so that Coulomb friction stops it within millimetres of losing the rod. The walls of the table are joint
# limits of both bodies: a puck squeezed between rod and wall then stalls the rod (limited force) and cannot jump out.
_MJCF = f"""
<mujoco model="tabletop">
  <option timestep="{_TIMESTEP_S}" integrator="implicitfast" cone="elliptic" iterations="20" ls_iterations="10"/>
  <default>
    <geom solref="0.008 1" solimp="0.95 0.99 0.001"/>
    <joint solreflimit="0.008 1" solimplimit="0.95 0.99 0.001"/>
  </default>
  <worldbody>
    <geom name="table" type="plane" size="{TABLE_HALF_M} {TABLE_HALF_M} 0.1" contype="2" conaffinity="2"
          friction="0.5"/>
    <body name="effector" pos="0 0 0.06">
      <joint name="effector_x" type="slide" axis="1 0 0" range="{-EFFECTOR_LIMIT_M} {EFFECTOR_LIMIT_M}"/>
      <joint name="effector_y" type="slide" axis="0 1 0" range="{-EFFECTOR_LIMIT_M} {EFFECTOR_LIMIT_M}"/>
      <geom name="rod" type="cylinder" size="{EFFECTOR_RADIUS_M} 0.05" mass="0.5" contype="1" conaffinity="1"
            friction="0.15"/>
    </body>
    <body name="puck" pos="0 0 {_PUCK_HALF_HEIGHT_M}">
      <joint name="puck_x" type="slide" axis="1 0 0" range="{-PUCK_LIMIT_M} {PUCK_LIMIT_M}"/>
      <joint name="puck_y" type="slide" axis="0 1 0" range="{-PUCK_LIMIT_M} {PUCK_LIMIT_M}"/>
      <joint name="puck_z" type="slide" axis="0 0 1"/>
      <joint name="puck_yaw" type="hinge" axis="0 0 1"/>
      <geom name="puck" type="cylinder" size="{PUCK_RADIUS_M} {_PUCK_HALF_HEIGHT_M}" mass="0.25" contype="3"
            conaffinity="3" friction="0.15"/>
    </body>
  </worldbody>
  <actuator>
    <intvelocity joint="effector_x" kp="5000" kv="100" actrange="-1 1" forcerange="-10 10"/>
    <intvelocity joint="effector_y" kp="5000" kv="100" actrange="-1 1" forcerange="-10 10"/>
  </actuator>
</mujoco>
"""


class TabletopPhysics:
    """The simulated table. Deterministic: the same places and moves give the same numbers."""

    def __init__(self, timestep_s: float = _TIMESTEP_S) -> None:
        self._model = mujoco.MjModel.from_xml_string(_MJCF)
        self._model.opt.timestep = timestep_s
        self._data = mujoco.MjData(self._model)

    def place(self, effector_xy: NDArray[np.floating], puck_xy: NDArray[np.floating]) -> None:
        """Put both bodies at rest. Positions [2], metres, world frame; the caller keeps them apart and on the table."""
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[0:2] = effector_xy
        self._data.qpos[2:4] = puck_xy
        self._data.act[:] = effector_xy
        mujoco.mj_forward(self._model, self._data)

    def move(self, displacement_xy: NDArray[np.floating]) -> NDArray[np.float64]:
        """Move the rod for one control period; returns the displacement it really made, [2] metres."""
        before = self.effector_xy
        self._data.act[:] = before
        self._data.ctrl[:] = np.asarray(displacement_xy, dtype=np.float64) / _MOVE_S
        mujoco.mj_step(self._model, self._data, nstep=_MOVE_SUBSTEPS)
        self._data.ctrl[:] = 0.0
        mujoco.mj_step(self._model, self._data, nstep=_SETTLE_SUBSTEPS)
        return self.effector_xy - before

    @property
    def effector_xy(self) -> NDArray[np.float64]:
        return np.array(self._data.qpos[0:2], dtype=np.float64)

    @property
    def puck_xy(self) -> NDArray[np.float64]:
        return np.array(self._data.qpos[2:4], dtype=np.float64)
