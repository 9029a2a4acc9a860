"""Real-time chunking as it is served, against the dense network with the literature's formulas written out."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from pi05_oracle import Oracle, golden_oracle
from walk_driver import WalkDriver, drive

from mstar_rt.errors import InvalidArgument
from policies.chunking.weights import prefix_weights
from policies.pi05.checkpoint import random_network
from policies.pi05.config import Pi05Config
from policies.pi05.model import declare, declare_pi0

INSTRUCTION = "push the red cup"
PI0_SEED = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
def robot(folder: Path) -> WalkDriver:
    return drive(declare("robot", tiny.CHECKPOINT, tiny.robot_settings(folder)))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return golden_oracle()


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((tiny.HORIZON, tiny.DIM)).astype(np.float32)


def act(driver: WalkDriver, arrays: tiny.Arrays, **options: Any) -> torch.Tensor:
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return driver.run_one("act", given, instruction=INSTRUCTION, **options).emitted["actions"][0]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def dense(
    oracle: Oracle, arrays: tiny.Arrays, num_steps: int, mode: str = "none", delay: int = 0, end: int = 0,
    schedule: str = "linear", bound: float = 10.0,
) -> torch.Tensor:  # fmt: skip
    """The flow, step by step, in tau = 1 - t as the papers have it."""
    context = oracle.context(arrays, INSTRUCTION)
    x = torch.from_numpy(arrays["noise"])
    previous = weights = None
    if mode != "none":
        previous = oracle.network_actions(arrays["previous_actions"], arrays["state"])
        weights = prefix_weights(schedule, delay, max(end, delay), tiny.HORIZON)[:, None]
    for step in range(num_steps):
        tau = step / num_steps
        if mode == "prefix":
            x = torch.cat([previous[:delay], x[delay:]])
            times = torch.tensor([0.0] * delay + [1 - tau] * (tiny.HORIZON - delay))
            x = x - oracle.velocity(context, x, times) / num_steps
            continue
        velocity = oracle.velocity(context, x, 1 - tau)
        if mode in ("guided", "guided_identity"):
            weight = bound if tau == 0 else min(bound, (1 - tau) / tau * (tau**2 + (1 - tau) ** 2) / (1 - tau) ** 2)
            error = (previous - (x - (1 - tau) * velocity)) * weights
            if mode == "guided":
                _, pull = torch.func.vjp(lambda at, t=1 - tau: at - t * oracle.velocity(context, at, t), x)
                (error,) = pull(error)
            velocity = velocity - weight * error
        x = x - velocity / num_steps
    if mode == "prefix":
        x = torch.cat([previous[:delay], x[delay:]])
    return oracle.robot_actions(x.detach(), arrays["state"])


def arrays_of(seed: int, noise: np.ndarray, rows: int | None = None, masked: bool = False) -> tiny.Arrays:
    arrays = {**tiny.observation(seed, masked=masked), "noise": noise}
    return arrays if rows is None else {**arrays, "previous_actions": tiny.previous(seed, rows)}


@pytest.mark.parametrize(("seed", "masked", "num_steps"), [(0, False, 10), (1, True, 4)])
def test_a_plain_chunk(
    robot: WalkDriver, oracle: Oracle, noise: np.ndarray, seed: int, masked: bool, num_steps: int
) -> None:
    arrays = arrays_of(seed, noise, masked=masked)
    close(act(robot, arrays, num_denoise_steps=num_steps), dense(oracle, arrays, num_steps))


@pytest.mark.parametrize("mode", ["guided", "guided_identity"])
@pytest.mark.parametrize(
    ("delay", "end", "schedule", "bound", "rows"),
    [(2, 6, "linear", 10.0, 8), (0, 5, "exponential", 5.0, 3), (3, 3, "zeros", 2.0, 10), (1, 9, "ones", 10.0, 1)],
)
def test_guided_chunks(
    robot: WalkDriver, oracle: Oracle, noise: np.ndarray, mode: str, delay: int, end: int, schedule: str, bound: float,
    rows: int,
) -> None:  # fmt: skip
    arrays = arrays_of(delay, noise, rows)
    options = {"delay": delay, "prefix_attention_horizon": end, "schedule": schedule, "max_guidance_weight": bound}
    got = act(robot, arrays, chunking=mode, num_denoise_steps=5, **options)
    close(got, dense(oracle, arrays, 5, mode, delay, end, schedule, bound))


@pytest.mark.parametrize("delay", [1, tiny.MAX_PREFIX_DELAY])
def test_a_hard_prefix_is_kept_exactly(robot: WalkDriver, oracle: Oracle, noise: np.ndarray, delay: int) -> None:
    arrays = arrays_of(delay, noise, 6)
    got = act(robot, arrays, chunking="prefix", delay=delay)
    close(got, dense(oracle, arrays, 10, "prefix", delay))
    close(got[:delay], torch.from_numpy(arrays["previous_actions"][:delay]))


def test_a_prefix_of_nothing_is_a_plain_chunk(robot: WalkDriver, noise: np.ndarray) -> None:
    arrays = arrays_of(0, noise, 6)
    plain = act(robot, {name: value for name, value in arrays.items() if name != "previous_actions"})
    close(act(robot, arrays, chunking="prefix", delay=0), plain)


@pytest.mark.parametrize("mode", ["guided", "guided_identity"])
def test_the_frozen_part_follows_the_previous_chunk_and_the_seam_shrinks(
    robot: WalkDriver, noise: np.ndarray, mode: str
) -> None:
    """A new chunk from other noise, and from an observation whose state has moved: without guidance it jumps."""
    first = act(robot, arrays_of(0, noise), num_denoise_steps=10)
    arrays = {**arrays_of(0, -noise), "previous_actions": first[3:].numpy()}
    arrays["state"] = arrays["state"] + np.float32(0.05)
    free = act(robot, {name: value for name, value in arrays.items() if name != "previous_actions"})
    guided = act(robot, arrays, chunking=mode, delay=3, prefix_attention_horizon=7)

    def seam(chunk: torch.Tensor) -> float:
        return float((chunk[3] - first[6]).abs().max())

    def gap(chunk: torch.Tensor) -> float:
        return float((chunk[:3] - first[3:6]).abs().max())

    assert gap(guided) < 0.35 * gap(free)
    assert seam(guided) < 0.7 * seam(free)


def test_relative_actions_are_anchored_to_the_new_state(robot: WalkDriver, noise: np.ndarray) -> None:
    """The first actions are the robot's absolute ones, wherever the state has moved in between."""
    arrays = arrays_of(1, noise, 5)
    for shift in (0.0, 0.3):
        moved = {**arrays, "state": arrays["state"] + np.float32(shift)}
        got = act(robot, moved, chunking="prefix", delay=3)
        close(got[:3], torch.from_numpy(arrays["previous_actions"][:3]))


def test_previous_actions_that_fell_short_are_held(robot: WalkDriver, noise: np.ndarray) -> None:
    arrays = arrays_of(2, noise, 2)
    held = np.concatenate([arrays["previous_actions"], np.repeat(arrays["previous_actions"][-1:], 8, axis=0)])
    options: dict[str, Any] = {"chunking": "guided", "delay": 4, "prefix_attention_horizon": 8}
    close(act(robot, arrays, **options), act(robot, {**arrays, "previous_actions": held}, **options))


def test_without_previous_actions_a_chunk_is_plain_and_says_so(robot: WalkDriver, noise: np.ndarray) -> None:
    given = {name: torch.from_numpy(array) for name, array in arrays_of(0, noise).items()}
    plain = robot.run_one("act", given, instruction="push")
    asked = robot.run_one("act", given, instruction="push", chunking="guided", delay=2)
    assert torch.equal(plain.emitted["actions"][0], asked.emitted["actions"][0])
    assert (plain.flags, asked.flags) == ([], ["no_previous_actions"])


def test_what_cannot_be_served_is_refused(robot: WalkDriver, noise: np.ndarray) -> None:
    arrays = arrays_of(0, noise, 5)
    for options, sentence in (
        ({"chunking": "prefix", "delay": 5}, "trained for prefixes of at most 4"),
        ({"chunking": "guided", "delay": 4, "prefix_attention_horizon": 2}, "4 actions are executed"),
        ({"chunking": "guided", "delay": 10}, "'delay' is 10, expected 0 to 9 actions"),
        ({}, "previous_actions count with chunking only"),
    ):
        with pytest.raises(InvalidArgument, match=sentence):
            act(robot, arrays, **options)
    too_long = {**arrays, "previous_actions": tiny.previous(0, 11)}
    with pytest.raises(InvalidArgument, match="K = 11, the limit of this model is 10"):
        act(robot, too_long, chunking="guided")
    assert robot.num_pages_held == 0


def test_pi0_is_served_and_guided_by_the_same_code(folder: Path, noise: np.ndarray) -> None:
    settings = {**tiny.pi0_settings(folder), "random_seed": PI0_SEED}
    driver = drive(declare_pi0("pi0", "", settings))
    theirs = Oracle(random_network(Pi05Config.from_dict({**tiny.network(), "kind": "pi0"}), PI0_SEED))
    plain = arrays_of(0, noise)
    close(act(driver, plain), dense(theirs, plain, 10))
    arrays = arrays_of(1, noise, 5)
    for mode in ("guided", "guided_identity"):
        got = act(driver, arrays, chunking=mode, delay=2, prefix_attention_horizon=6, num_denoise_steps=4)
        close(got, dense(theirs, arrays, 4, mode, 2, 6))
    close(act(driver, arrays, chunking="prefix", delay=3), dense(theirs, arrays, 10, "prefix", 3))
    assert not math.isclose(
        float(act(driver, {**plain, "state": plain["state"] + np.float32(0.1)})[0, 2]),
        float(act(driver, plain)[0, 2]),
        abs_tol=1e-4,
    )
