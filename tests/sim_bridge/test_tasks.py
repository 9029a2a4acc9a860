"""Task samplers: what their docstrings promise, for many seeds."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_rt.errors import NotFound
from sim_bridge.camera import draw_tabletop
from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, EFFECTOR_LIMIT_M, PUCK_LIMIT_M
from sim_bridge.tasks import (
    PUSH_DISTANCE_M,
    PUSH_START_GAP_M,
    REACH_DISTANCE_M,
    SUCCESS_DISTANCE_M,
    sample_task,
)

SEEDS = range(200)


@pytest.mark.parametrize("kind", ["reach", "push"])
def test_places_are_free_and_on_the_table(kind: str) -> None:
    for seed in SEEDS:
        task = sample_task(kind, seed)
        for effector, puck in (
            (task.start_effector_xy, task.start_puck_xy),
            (task.goal_effector_xy, task.goal_puck_xy),
        ):
            assert np.linalg.norm(effector - puck) > CONTACT_DISTANCE_M
            assert np.abs(effector).max() <= EFFECTOR_LIMIT_M
            assert np.abs(puck).max() <= PUCK_LIMIT_M
        assert task.distance_m(task.start_effector_xy, task.start_puck_xy) > 2 * SUCCESS_DISTANCE_M
        assert task.distance_m(task.goal_effector_xy, task.goal_puck_xy) == 0.0


def test_reach_leaves_the_puck_and_keeps_to_its_distances() -> None:
    for seed in SEEDS:
        task = sample_task("reach", seed)
        assert np.array_equal(task.start_puck_xy, task.goal_puck_xy)
        distance = np.linalg.norm(task.goal_effector_xy - task.start_effector_xy)
        assert REACH_DISTANCE_M[0] <= distance <= REACH_DISTANCE_M[1]
        assert distance <= 0.05 * task.num_steps


def test_push_starts_near_the_puck_on_any_side_of_it() -> None:
    angles = []
    for seed in SEEDS:
        task = sample_task("push", seed)
        push = task.goal_puck_xy - task.start_puck_xy
        behind = task.start_puck_xy - task.start_effector_xy
        cosine = np.dot(push, behind) / np.linalg.norm(push) / np.linalg.norm(behind)
        angles.append(np.arccos(np.clip(cosine, -1, 1)))
        assert PUSH_DISTANCE_M[0] - 1e-9 <= np.linalg.norm(push) <= PUSH_DISTANCE_M[1] + 1e-9
        assert np.linalg.norm(behind) - CONTACT_DISTANCE_M <= PUSH_START_GAP_M[1] + 1e-9
    counts, _ = np.histogram(angles, bins=4, range=(0, np.pi))
    assert counts.min() > len(SEEDS) / 8, "behind the puck, beside it and in front of it alike"


def test_goal_image_is_the_camera_at_the_goal() -> None:
    task = sample_task("push", 7)
    assert np.array_equal(task.goal_image, draw_tabletop(task.goal_effector_xy, task.goal_puck_xy))


def test_tasks_depend_on_their_seed_alone() -> None:
    first, again, other = sample_task("reach", 5), sample_task("reach", 5), sample_task("reach", 6)
    assert np.array_equal(first.goal_effector_xy, again.goal_effector_xy)
    assert not np.array_equal(first.goal_effector_xy, other.goal_effector_xy)


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'reach'"):
        sample_task("reech", 0)
