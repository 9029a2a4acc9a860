"""Training data: deterministic, held-out data apart from training data, and enough contact in it."""

from __future__ import annotations

import numpy as np

from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, MAX_DISPLACEMENT_M
from world_models.vjepa2.train.episodes import HELD_OUT_STREAM, TRAIN_STREAM, record_episodes


def test_same_seed_same_episodes_and_other_stream_other_episodes() -> None:
    first, again = (record_episodes(4, TRAIN_STREAM, 3) for _ in range(2))
    other = record_episodes(4, HELD_OUT_STREAM, 3)
    assert np.array_equal(first.images, again.images)
    assert np.array_equal(first.actions, again.actions)
    assert not np.array_equal(first.puck, other.puck)


def test_shapes_limits_and_contact() -> None:
    episodes = record_episodes(0, TRAIN_STREAM, 60)
    assert episodes.images.shape == (60, 16, 64, 64, 3)
    assert episodes.actions.shape == (60, 15, 2)
    assert np.abs(episodes.actions).max() <= np.float32(MAX_DISPLACEMENT_M)
    assert 0.25 < episodes.share_with_contact < 0.7
    apart = np.linalg.norm(episodes.effector - episodes.puck, axis=-1)
    assert apart.min() > CONTACT_DISTANCE_M - 0.006


def test_actions_are_commanded_and_states_are_measured() -> None:
    episodes = record_episodes(1, TRAIN_STREAM, 60)
    shortfall = np.abs(np.diff(episodes.effector, axis=1) - episodes.actions).max(-1)
    assert np.median(shortfall) < 0.0005, "a free rod moves as commanded"
    assert (shortfall > 0.005).any(), "a rod at a wall does not, and the data shows it"
