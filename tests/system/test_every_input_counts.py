"""Whatever a request may say changes its answer: each input and option is changed alone, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from serving import assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import DeadlineExceeded, InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

RNG = np.random.default_rng(9)
FRAMES = RNG.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
GOAL = RNG.integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
STATE = np.array([0.4, 0.1, 0.3, 3.0, -0.2, 0.5, 0.3], np.float32)
PAST_ACTIONS = RNG.normal(0, 0.03, (2, 7)).astype(np.float32)
PAST_STATES = np.stack([STATE - 0.02, STATE - 0.01, STATE])
ACTIONS = RNG.normal(0, 0.03, (3, 7)).astype(np.float32)
STATES = np.stack([STATE, STATE + 0.01, STATE + 0.02])
GOALS = RNG.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
SAME, CHANGED = 1e-6, 1e-5


def with_frame(index: int) -> np.ndarray:
    """One pixel patch of one frame is another."""
    changed = FRAMES.copy()
    changed[index, 16:32, 16:32] = 255 - changed[index, 16:32, 16:32]
    return changed


def plus(array: np.ndarray, *index: int) -> np.ndarray:
    changed = array.copy()
    changed[index] += 0.05
    return changed


PLAN = {
    "frames": FRAMES, "goal_frames": GOAL, "state": STATE, "context_actions": PAST_ACTIONS,
    "rollout_horizon": 2, "num_samples": 24, "num_elites": 6, "num_iterations": 3, "seed": 3,
}  # fmt: skip
PLAN_CHANGES: dict[str, dict[str, Any]] = {
    "first frame": {"frames": with_frame(0)},
    "second frame": {"frames": with_frame(1)},
    "last frame": {"frames": with_frame(2)},
    "goal": {"goal_frames": 255 - GOAL},
    "state": {"state": plus(STATE, 1)},
    "state's rotation": {"state": plus(STATE, 5)},
    "state's gripper": {"state": plus(STATE, 6)},
    "first past action": {"context_actions": plus(PAST_ACTIONS, 0, 0)},
    "last past action": {"context_actions": plus(PAST_ACTIONS, 1, 6)},
    "past states": {"context_states": PAST_STATES},
    "no past": {"frames": FRAMES[2:], "context_actions": None},
    "horizon": {"rollout_horizon": 3},
    "samples": {"num_samples": 25},
    "elites": {"num_elites": 7},
    "iterations": {"num_iterations": 4},
    "seed": {"seed": 4},
    "large seed": {"seed": 2**62},
    "momentum of the mean": {"momentum_mean": 0.5},
    "momentum of the std": {"momentum_std": 0.5},
    "momentum of the gripper's mean": {"momentum_mean_gripper": 0.5},
    "momentum of the gripper's std": {"momentum_std_gripper": 0.5},
    "displacement": {"max_displacement": 0.08},
    "pinned": {"pinned": {2: 0.01}},
    "pinned gripper": {"pinned": {3: 0.4}},
    "gripper closes": {"close_gripper_step": 1},
    "tolerance": {"convergence_tolerance": 0.5},
    "initial mean": {"initial_mean": np.array([[0.02, 0, 0, 0, 0, 0, 0]] * 2, np.float32)},
    "planner": {"planner": "mppi"},
    "kept elites": {"keep_elites": True},
    "tree": {"tree_branching": [6, 4]},
    "low bound": {"action_low": [-0.02] * 3 + [0] * 3 + [-0.3]},
    "high bound": {"action_high": [0.02] * 3 + [0] * 3 + [0.3]},
    "cost": {"cost": "l2"},
    "other cost": {"cost": "cosine"},
    "window": {"context_window": 3},
}  # fmt: skip
PLAN_CHANGES_TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"planner": "mppi"}, {"temperature": 0.5}),
    "mean": ({"num_elites": 24}, {"include_mean": True}),
    "branches": ({"tree_branching": [6, 4]}, {"tree_branching": [12, 2]}),
    "use of goals": ({"goal_frames": GOALS[:2], "goal_use": "nearest"}, {"goal_use": "per_step"}),
    "first goal's weight": ({"goal_frames": GOALS[:2], "goal_use": "per_step"}, {"goal_weights": [2.0, 1.0]}),
    "last goal's weight": ({"goal_frames": GOALS[:2], "goal_use": "nearest"}, {"goal_weights": [1.0, 0.5]}),
    "stride": ({"context_window": 3, "window_stride": 1}, {"window_stride": 3}),
}
"""Options that mean something only along with others: what both requests have, and the change."""

ROLLOUT = {"frames": FRAMES, "actions": ACTIONS, "state": STATE, "context_actions": PAST_ACTIONS}
ROLLOUT_CHANGES: dict[str, dict[str, Any]] = {
    "first frame": {"frames": with_frame(0)},
    "second frame": {"frames": with_frame(1)},
    "last frame": {"frames": with_frame(2)},
    "state": {"state": plus(STATE, 0)},
    "first past action": {"context_actions": plus(PAST_ACTIONS, 0, 2)},
    "last past action": {"context_actions": plus(PAST_ACTIONS, 1, 2)},
    "past states": {"context_states": PAST_STATES},
    "first action": {"actions": plus(ACTIONS, 0, 0)},
    "last action": {"actions": plus(ACTIONS, 2, 4)},
    "rotation": {"actions": plus(ACTIONS, 1, 3)},
    "states": {"states": STATES},
    "last latent alone": {"output": "last_latent"},
    "window": {"context_window": 3},
}  # fmt: skip
DISTANCES = {"output": "goal_distance", "goal_frames": GOALS[:1]}
PER_STEP = {"output": "goal_distance", "goal_frames": GOALS, "goal_use": "per_step"}
ROLLOUT_CHANGES_TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "goal": (DISTANCES, {"goal_frames": GOALS[1:2]}),
    "cost": (DISTANCES, {"cost": "l2"}),
    "other cost": (DISTANCES, {"cost": "cosine"}),
    "second goal": (PER_STEP, {"goal_frames": GOALS[[0, 0, 2]]}),
    "use of goals": (PER_STEP, {"goal_use": "nearest"}),
    "second goal's weight": (PER_STEP, {"goal_weights": [1.0, 2.0, 1.0]}),
    "stride": ({"context_window": 3, "window_stride": 1}, {"window_stride": 3}),
}
CAMERAS = RNG.normal(0, 0.3, (3, 6)).astype(np.float32)


def plan(client: Client, model: str = "tiny", **changes: Any) -> np.ndarray:
    """All numbers of all improvements."""
    made = client.plan(model, **{**PLAN, **changes})
    numbers = [(*step.actions.ravel(), step.cost, step.elite_mean_cost) for step in made.improvements]
    return np.array(numbers)


def rollout(client: Client, model: str = "tiny", **changes: Any) -> np.ndarray:
    arguments = {**ROLLOUT, **changes}
    values = [
        value for step in client.rollout(model, **arguments) for value in (step.latent, step.pose, step.goal_distance)
    ]
    return np.concatenate([np.ravel(value) for value in values if value is not None])


def differ(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or float(np.abs(one - other).max()) > CHANGED


@pytest.fixture(scope="module")
def unchanged(serving: Any) -> dict[str, np.ndarray]:
    with serving.connect() as client:
        return {"plan": plan(client), "rollout": rollout(client)}


def test_equal_requests_have_equal_answers(client: Client, unchanged: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(plan(client), unchanged["plan"], rtol=0, atol=SAME)
    np.testing.assert_allclose(rollout(client), unchanged["rollout"], rtol=0, atol=SAME)


@pytest.mark.parametrize("what", PLAN_CHANGES)
def test_every_input_of_a_plan_counts(client: Client, unchanged: dict[str, np.ndarray], what: str) -> None:
    assert differ(plan(client, **PLAN_CHANGES[what]), unchanged["plan"])


@pytest.mark.parametrize("what", ROLLOUT_CHANGES)
def test_every_input_of_a_rollout_counts(client: Client, unchanged: dict[str, np.ndarray], what: str) -> None:
    assert differ(rollout(client, **ROLLOUT_CHANGES[what]), unchanged["rollout"])


@pytest.mark.parametrize("what", PLAN_CHANGES_TOGETHER)
def test_every_option_of_a_plan_counts_along_with_others(client: Client, what: str) -> None:
    common, change = PLAN_CHANGES_TOGETHER[what]
    assert differ(plan(client, **{**common, **change}), plan(client, **common))


@pytest.mark.parametrize("what", ROLLOUT_CHANGES_TOGETHER)
def test_every_option_of_a_rollout_counts_along_with_others(client: Client, what: str) -> None:
    common, change = ROLLOUT_CHANGES_TOGETHER[what]
    assert differ(rollout(client, **{**common, **change}), rollout(client, **common))


@pytest.mark.parametrize("call", [plan, rollout])
def test_every_camera_counts(client: Client, call: Callable[..., np.ndarray]) -> None:
    """That of each context frame; what is imagined is seen by the last one."""
    unmoved = call(client, "cameras", extrinsics=CAMERAS)
    for index in (0, 1, 2):
        assert differ(call(client, "cameras", extrinsics=plus(CAMERAS, index, 3)), unmoved)
    with pytest.raises(InvalidArgument, match="there are 0 extrinsics for 3 frames, expected the camera's pose"):
        call(client, "cameras")
    with pytest.raises(InvalidArgument, match="extrinsics"):
        call(client, "cameras", extrinsics=CAMERAS[:2])
    with pytest.raises(InvalidArgument, match="unknown tensor 'extrinsics'"):
        call(client, "tiny", extrinsics=CAMERAS)


def test_the_cameras_of_a_session_are_those_of_its_frames(client: Client) -> None:
    with client.session("cameras", context_window=5) as session:
        for index in range(3):
            executed = {"executed_action": PAST_ACTIONS[index - 1]} if index else {}
            session.observe(FRAMES[index], PAST_STATES[index], extrinsics=CAMERAS[[index]], **executed)
        with pytest.raises(InvalidArgument, match="tensor 'extrinsics' is missing"):
            session.observe(FRAMES[2], STATE, executed_action=PAST_ACTIONS[0])
        *steps, _ = session.rollout(ACTIONS)
    alone = client.rollout("cameras", **ROLLOUT, context_states=PAST_STATES, extrinsics=CAMERAS)
    for got, want in zip(steps, alone, strict=True):
        np.testing.assert_allclose(got.latent, want.latent, rtol=0, atol=2e-5)


def test_the_tables_name_all_that_the_model_declares(client: Client) -> None:
    """A new input or option needs a line here."""
    tasks = client.describe("tiny").tasks
    wire_names = {"pinned_dims": "pinned", "pinned_values": "pinned"}
    elsewhere = {
        "context_latents", "goal_latents",  # test_golden_over_grpc, and the latents of the frames below
        "warm_mean", "warm_start",  # test_sessions_over_grpc
    }  # fmt: skip
    for task, alone, together, derived in (
        ("plan", PLAN_CHANGES, PLAN_CHANGES_TOGETHER, set()),
        ("rollout", ROLLOUT_CHANGES, ROLLOUT_CHANGES_TOGETHER, {"rollout_horizon"}),
    ):
        changes = [*alone.values(), *(change for _, change in together.values())]
        changed = {name for change in changes for name in change}
        declared = [spec.name for spec in (*tasks[task].inputs, *tasks[task].options)]
        assert {wire_names.get(name, name) for name in declared} - elsewhere - derived <= changed


def test_latents_stand_in_for_their_frames(client: Client, unchanged: dict[str, np.ndarray]) -> None:
    latents, goal = client.encode("tiny", FRAMES).latents, client.encode("tiny", GOAL).latents[0]
    in_place: dict[str, Any] = {"frames": None, "goal_frames": None, "latents": latents, "goal_latents": goal}
    assert not differ(plan(client, **in_place), unchanged["plan"])
    for index in range(3):
        changed = latents.copy()
        changed[index] *= -1
        assert differ(plan(client, **{**in_place, "latents": changed}), unchanged["plan"])
    assert differ(plan(client, **{**in_place, "goal_latents": -goal}), unchanged["plan"])
    assert_nothing_is_held(client)


def test_a_budget_ends_the_search(client: Client) -> None:
    search = {**PLAN, "num_samples": 200, "rollout_horizon": 3, "num_iterations": 100}
    made = client.plan("tiny", **search, budget_ms=250)
    assert made.flags == ("deadline",)
    assert 1 <= made.num_iterations < 100
    with pytest.raises(DeadlineExceeded, match="give it more"):
        client.plan("tiny", **search, budget_ms=0.001)
    assert_nothing_is_held(client)


def test_a_model_says_when_it_imagines_beyond_what_it_was_trained_on(client: Client) -> None:
    trained = int(client.describe("tiny").facts["trained_positions"])
    for horizon, flags in ((trained, ()), (trained + 1, ("beyond_trained_positions",))):
        stream = client.rollout("tiny", FRAMES[:1], np.zeros((horizon, 7)), STATE)
        assert len(list(stream)) == horizon
        assert stream.done is not None
        assert stream.done.flags == flags
