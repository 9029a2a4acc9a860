"""Requests of several clients share steps, and each gets what it gets alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serving import Serving, assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.client.results import Timing

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

RNG = np.random.default_rng(8)
FRAMES = RNG.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
NUM_ROUNDS = 2

Answer = tuple[list[np.ndarray], Timing]
Ask = Callable[[Client], Answer]


def plan(num_frames: int, **options: Any) -> Ask:
    past = np.full((num_frames - 1, 7), 0.02, np.float32) if num_frames > 1 else None

    def ask(client: Client) -> Answer:
        state = np.full(7, 0.1 * num_frames)
        made = client.plan("tiny", FRAMES[:num_frames], FRAMES[3:], state, context_actions=past, **options)
        return [made.actions, *(improvement.actions for improvement in made.improvements)], made.timing

    return ask


def rollout(num_frames: int, num_sequences: int, horizon: int) -> Ask:
    past = np.full((num_frames - 1, 7), 0.02, np.float32) if num_frames > 1 else None
    actions = np.random.default_rng(horizon).normal(0, 0.05, (num_sequences, horizon, 7)).astype(np.float32)

    def ask(client: Client) -> Answer:
        stream = client.rollout("tiny", FRAMES[:num_frames], actions, np.zeros(7), context_actions=past)
        steps = [array for step in stream for array in (step.latent, step.pose) if array is not None]
        assert stream.done is not None
        return steps, stream.done.timing

    return ask


PLANS = [
    plan(1, num_samples=32, num_elites=8, rollout_horizon=1, num_iterations=6, seed=1),
    plan(1, num_samples=48, num_elites=6, rollout_horizon=3, num_iterations=4, seed=2, pinned={2: 0.01}),
    plan(2, num_samples=20, num_elites=5, rollout_horizon=2, num_iterations=5, seed=3, close_gripper_step=1),
    plan(3, num_samples=40, num_elites=9, rollout_horizon=4, num_iterations=3, seed=4, momentum_mean=0.4),
    plan(1, num_samples=48, num_elites=6, rollout_horizon=3, num_iterations=4, seed=5, max_displacement=0.1),
]
ROLLOUTS = [rollout(1, 1, 12), rollout(2, 5, 8), rollout(3, 2, 20), rollout(1, 9, 5)]


def together(serving: Serving, asks: Sequence[Ask]) -> list[Answer]:
    """Each from a thread with a connection of its own, all let go at once."""
    start = threading.Barrier(len(asks))

    def one(ask: Ask) -> Answer:
        with serving.connect() as client:
            client.models()
            start.wait()
            return ask(client)

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(one, asks))


def test_plans_and_rollouts_of_many_clients_equal_those_alone(serving: Serving, client: Client) -> None:
    asks = [*PLANS, *ROLLOUTS]
    tolerances = [1e-4] * len(PLANS) + [1e-5] * len(ROLLOUTS)
    alone = [ask(client) for ask in asks]
    assert all(node.batched_with == 0 for _, timing in alone for node in timing.nodes.values())
    num_shared = 0
    for _ in range(NUM_ROUNDS):
        for (arrays, timing), (expected, _), tolerance in zip(together(serving, asks), alone, tolerances, strict=True):
            assert len(arrays) == len(expected)
            for array, wanted in zip(arrays, expected, strict=True):
                np.testing.assert_allclose(array, wanted, rtol=0, atol=tolerance)
            num_shared += timing.nodes["predict"].batched_with
    assert num_shared > 0
    assert_nothing_is_held(client)


def test_frames_of_both_dtypes_share_an_encoder_step(serving: Serving, client: Client) -> None:
    """uint8 pixels and floats that are normalised already stand side by side in one batch."""
    normalised = ((FRAMES / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).astype(np.float32)

    def encode(frames: np.ndarray) -> Ask:
        def ask(client: Client) -> Answer:
            encoding = client.encode("tiny", frames)
            return [encoding.latents], encoding.timing

        return ask

    (want,), _ = encode(FRAMES)(client)
    asks = [encode(frames) for frames in (FRAMES, normalised) * 4]
    for (latents,), _ in together(serving, asks):
        np.testing.assert_allclose(latents, want, rtol=0, atol=1e-5)
    assert_nothing_is_held(client)
