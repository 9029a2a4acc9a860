"""Seams, steps and jerk of motions that are made of chunks."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_rt.client.control.action_queue import RobotAction
from sim_bridge.smoothness import jerk_ratio, stretches, typical_step


def _taken(values: list[float], chunk_ticks: int = 5) -> list[RobotAction]:
    return [
        RobotAction("chunk", np.array([value, 2.0], np.float32), chunk_seq=tick // chunk_ticks, index=0)
        for tick, value in enumerate(values)
    ]


def test_a_motion_is_cut_where_the_robot_holds() -> None:
    taken = _taken([0.0, 1.0, 2.0, 3.0])
    taken.insert(2, RobotAction("hold", np.array([9.0, 9.0])))
    taken.append(RobotAction("stop", None))
    first, second = stretches(taken)
    np.testing.assert_array_equal(first.actions[:, 0], [0.0, 1.0])
    np.testing.assert_array_equal(second.actions[:, 0], [2.0, 3.0])
    assert first.chunk_seq.tolist() == [0, 0]
    assert stretches([]) == []


def test_the_typical_step_leaves_seams_out() -> None:
    values = [tick * 3.0 + (100.0 if tick >= 5 else 0.0) for tick in range(10)]
    assert typical_step(stretches(_taken(values))) == pytest.approx(3.0)
    assert np.isnan(typical_step(stretches(_taken([1.0]))))


def test_jerk_at_seams_over_jerk_inside() -> None:
    rng = np.random.default_rng(0)
    wobble = rng.normal(0.0, 0.1, 400).cumsum()
    assert jerk_ratio(stretches(_taken(wobble.tolist()))) == pytest.approx(1.0, abs=0.15)
    jumps = wobble + 10.0 * (np.arange(400) // 5)
    assert jerk_ratio(stretches(_taken(jumps.tolist()))) > 20.0
    assert np.isnan(jerk_ratio(stretches(_taken([0.0] * 20))))
    assert np.isnan(jerk_ratio([]))
