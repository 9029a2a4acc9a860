"""What a rollout may be asked for: all latents, the last, or distances to goals; more frames than a window holds; more steps
than there are."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from serving import Serving, assert_nothing_is_held

from mstar_rt.client import Client, RolloutStep
from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array
from mstar_rt.protos.world_model_pb2_grpc import WorldModelStub

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

RNG = np.random.default_rng(13)
FRAMES = RNG.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
GOALS = RNG.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
STATE = RNG.normal(0, 0.3, 7).astype(np.float32)
PAST = RNG.normal(0, 0.03, (2, 7)).astype(np.float32)
PAST_STATES = np.stack([STATE - PAST.sum(axis=0), STATE - PAST[1], STATE])
ACTIONS = RNG.normal(0, 0.03, (3, 4, 7)).astype(np.float32)
CONTEXT: dict[str, Any] = {"frames": FRAMES, "state": STATE, "context_actions": PAST}
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.25], np.float32)
SAME = 1e-5


def rollout(client: Client, actions: np.ndarray = ACTIONS, **options: Any) -> list[RolloutStep]:
    return list(client.rollout("tiny", actions=actions, **{**CONTEXT, **options}))


def latents_of(steps: list[RolloutStep]) -> np.ndarray:
    return np.stack([step.latent for step in steps if step.latent is not None])


def distances_of(steps: list[RolloutStep]) -> np.ndarray:
    assert all(step.latent is None for step in steps)
    return np.stack([step.goal_distance for step in steps if step.goal_distance is not None])


def distance(kind: str, latents: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """[H, B, P, D] and [P, D] -> [H, B], from the formulas that `describe` gives for the option `cost`."""
    if kind == "l1":
        return np.abs(latents - goal).mean(axis=(-2, -1))
    if kind == "l2":
        return np.sqrt(((latents - goal) ** 2).mean(axis=-1)).mean(axis=-1)
    products = (latents * goal).sum(axis=-1)
    norms = np.linalg.norm(latents, axis=-1) * np.linalg.norm(goal, axis=-1)
    return (1 - products / norms).mean(axis=-1)


def test_only_the_last_latent(client: Client) -> None:
    every, last = rollout(client), rollout(client, output="last_latent")
    assert [step.latent is None for step in last] == [True, True, True, False]
    np.testing.assert_allclose(last[-1].latent, every[-1].latent, rtol=0, atol=SAME)
    for one, other in zip(last, every, strict=True):
        np.testing.assert_array_equal(one.pose, other.pose)
        assert other.goal_distance is None
        assert one.goal_distance is None


@pytest.mark.parametrize("cost", ["l1", "l2", "cosine"])
def test_distances_are_those_of_the_latents(client: Client, cost: str) -> None:
    latents, goals = latents_of(rollout(client)), client.encode("tiny", GOALS).latents
    distances = np.stack([distance(cost, latents, goal) for goal in goals])
    asked: dict[str, Any] = {"output": "goal_distance", "cost": cost}
    cases: list[tuple[dict[str, Any], np.ndarray]] = [
        ({"goal_frames": GOALS[:1]}, distances[0]),
        ({"goal_latents": goals[1]}, distances[1]),
        ({"goal_frames": GOALS, "goal_use": "per_step"}, np.stack([distances[h, h] for h in range(4)])),
        ({"goal_frames": GOALS, "goal_use": "nearest"}, distances.min(axis=0)),
        (
            {"goal_latents": goals, "goal_use": "nearest", "goal_weights": WEIGHTS},
            (WEIGHTS[:, None, None] * distances).min(axis=0),
        ),
        (
            {"goal_latents": goals, "goal_use": "per_step", "goal_weights": WEIGHTS},
            np.stack([WEIGHTS[h] * distances[h, h] for h in range(4)]),
        ),
    ]
    for goal, wanted in cases:
        np.testing.assert_allclose(distances_of(rollout(client, **asked, **goal)), wanted, rtol=0, atol=SAME)
    assert_nothing_is_held(client)


def test_one_sequence_has_one_distance_and_a_session_has_a_goal(client: Client) -> None:
    wanted = distances_of(rollout(client, output="goal_distance", goal_frames=GOALS, goal_use="nearest"))
    with client.session("tiny") as session:
        session.observe(**CONTEXT)
        session.set_goal(GOALS[:1])
        session.set_goal(GOALS, goal_use="nearest")
        *steps, _ = session.rollout(ACTIONS[1], output="goal_distance")
        assert [step.goal_distance.shape for step in steps] == [()] * 4
        np.testing.assert_allclose(distances_of(steps), wanted[:, 1], rtol=0, atol=SAME)
        *steps, _ = session.rollout(ACTIONS[1])
        assert latents_of(steps).shape == (4, 16, 64), "the goal of the session is none of its business"


def test_sequences_of_one_request_equal_those_alone(client: Client) -> None:
    together = latents_of(rollout(client, context_window=3, window_stride=2))
    for index, actions in enumerate(ACTIONS):
        alone = latents_of(rollout(client, actions, context_window=3, window_stride=2))
        np.testing.assert_allclose(together[:, index], alone, rtol=0, atol=SAME)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (3, 3), (4, 1), (5, 2)])
def test_a_window_is_a_new_start_wherever_it_slides(client: Client, size: int, stride: int) -> None:
    """From there on it is the rollout that begins with the frames which are left, imagined ones among them."""
    whole = rollout(client, ACTIONS[0], context_states=PAST_STATES, context_window=size, window_stride=stride)
    latents = list(client.encode("tiny", FRAMES).latents)
    actions = [*PAST, *ACTIONS[0]]
    poses = [*PAST_STATES, *(step.pose for step in whole)]
    for step in whole:
        if len(latents) > size:
            latents, actions, poses = latents[stride:], actions[stride:], poses[stride:]
        last = len(latents) - 1
        past = {"context_actions": actions[:last], "context_states": poses[: last + 1]} if last else {}
        (alone,) = client.rollout("tiny", None, actions[last : last + 1], poses[last], latents=latents, **past)
        np.testing.assert_allclose(step.latent, alone.latent, rtol=0, atol=2 * SAME)
        latents.append(step.latent)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"context_window": 2}, "there are 3 context frames, expected at most context_window = 2: give the newest"),
    ({"context_window": 0}, "'context_window' is 0, expected 1 to 32"),
    ({"context_window": 33}, "'context_window' is 33, expected 1 to 32"),
    ({"context_window": 3, "window_stride": 4}, "'window_stride' is 4, expected at most context_window = 3"),
    ({"actions": np.zeros((33, 7))}, "has H = 33, the limit of this model is 32"),
    ({"actions": np.zeros((32, 7))}, "need 34 frames, this model takes 32: imagine fewer steps, or let the frames slide"),
    ({"output": "goal_distance", "goal_frames": GOALS[:2]}, "last"),
    ({"output": "goal_distance", "goal_frames": GOALS[:3], "goal_use": "per_step"}, "per_step"),
    ({"output": "goal_distance", "goal_frames": GOALS[:1], "goal_weights": [2.0]}, "weights"),
    ({"output": "goal_distance", "goal_frames": GOALS[:2], "goal_use": "nearest", "goal_weights": [1.0]}, "goal_weights"),
    ({"output": "goal_distance", "goal_frames": GOALS[:2, :48]}, r"'goal_frames' has shape \[2, 48, 64, 3\]"),
    ({"cost": "l3", "output": "goal_distance", "goal_frames": GOALS[:1]}, "'cost' is 'l3', expected one of l1, l2, cosine"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(client: Client, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as failure:
        rollout(client, **wrong)
    assert "\n" not in str(failure.value)
    assert_nothing_is_held(client)


def test_long_horizons_are_flagged_not_clamped(client: Client) -> None:
    """As long as the predictor never stands beyond what it was trained on there is nothing to flag."""
    trained = int(client.describe("tiny").facts["trained_positions"])
    for window, flags in (
        (32, ("beyond_trained_positions",)),
        (trained + 1, ("beyond_trained_positions",)),
        (trained, ()),
    ):
        stream = client.rollout("tiny", FRAMES[:1], np.zeros((20, 7)), STATE, context_window=window)
        assert len(list(stream)) == 20
        assert stream.done is not None
        assert (stream.done.num_steps, stream.done.flags) == (20, flags)


# ---- a context of its own, in a session that keeps a history


def test_a_command_with_a_context_of_its_own_leaves_the_history_alone(serving: Serving, client: Client) -> None:
    def tensor(array: np.ndarray) -> tensor_pb2.Tensor:
        return tensor_from_array(np.asarray(array, np.float32))

    def view(index: int, **fields: Any) -> wire.Context:
        frames = tensor_pb2.Frames(tensor=tensor_from_array(FRAMES[index : index + 1]))
        return wire.Context(frames=frames, state=tensor(STATE + 0.01 * index), **fields)

    own = view(2)
    own.frames.tensor.CopyFrom(tensor_from_array(FRAMES[1:]))
    own.actions.CopyFrom(tensor(PAST[1:]))
    imagine = wire.Rollout(actions=tensor(ACTIONS[0]))
    commands: list[dict[str, Any]] = [
        {"open": wire.OpenWorldModel(model="tiny", context_window=4)},
        {"observe": wire.Observe(context=view(0))},
        {"observe": wire.Observe(context=view(1), executed_action=tensor(PAST[0]), follows=2)},
        {"rollout": wire.SessionRollout(rollout=imagine)},
        {"rollout": wire.SessionRollout(rollout=imagine, context=own)},
        {"rollout": wire.SessionRollout(rollout=imagine)},
        {"close": wire.CloseWorldModel()},
    ]
    answers: dict[int, list[np.ndarray]] = {4: [], 5: [], 6: []}
    with grpc.insecure_channel(serving.address) as channel:
        messages = [wire.SessionRequest(message_id=i, **command) for i, command in enumerate(commands, 1)]
        for answer in WorldModelStub(channel).Session(iter(messages)):
            assert answer.WhichOneof("answer") != "error", answer
            if answer.WhichOneof("answer") == "step":
                answers[answer.answers].append(array_from_tensor(answer.step.latent, "latent"))
    np.testing.assert_allclose(answers[6], answers[4], rtol=0, atol=SAME)
    alone = client.rollout("tiny", FRAMES[1:], ACTIONS[0], STATE + 0.02, context_actions=PAST[1:], context_window=4)
    np.testing.assert_allclose(answers[5], latents_of(list(alone)), rtol=0, atol=SAME)
    assert np.abs(np.stack(answers[5]) - np.stack(answers[4])).max() > 1e-3
    assert_nothing_is_held(client)
