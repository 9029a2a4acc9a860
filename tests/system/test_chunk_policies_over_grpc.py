"""Policies that are not pi0.5 on the same control session: ACT and Diffusion Policy from LeRobot's folders, with real
workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "policies"), str(TESTS / "server")]

from control_stream import Robot, actions_of
from published_policies import Published, close, published
from serving import Serving, assert_nothing_is_held, serving_of, write_deployment

from mstar_rt.client import Client, RobotSchema, VectorSchema
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import tensor_from_array

PATIENT: dict[str, Any] = {"control_hz": 10.0, "budget_ms": 20e3, "max_action_age_s": 60.0}
"""A robot that waits for its actions, however busy the machine is."""
pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def act() -> Published:
    return published("act_tiny", "two_cameras")


@pytest.fixture(scope="module")
def policy_serving(act: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`arm` sees on rank 1 and acts on rank 0; `blind` has no state and one camera, and no processor files; `painter` is a
    Diffusion Policy of three observations, which sees on rank 0 and takes the noise off on rank 1."""
    folder = tmp_path_factory.mktemp("policies")
    act.write(folder / "arm")
    published("act_tiny", "no_state").write_old(folder / "blind")
    published("diffusion_tiny", "ddim").write(folder / "painter")
    families = {"arm": "act", "blind": "act", "painter": "diffusion"}
    deployment = {
        "name": "policies",
        "server": {"port": 0},
        "admission": {"utilisation_bound": None},  # busy machines are slow, and robots here are patient
        "models": [{"name": name, "family": family, "checkpoint": name} for name, family in families.items()],
        "workers": [{"rank": rank, "check_outputs": True} for rank in range(2)],
        "placement": [
            {"model": "arm", "ranks": [0]}, {"model": "arm", "nodes": ["see"], "ranks": [1]},
            {"model": "blind", "ranks": [0]}, {"model": "painter", "ranks": [0]},
            {"model": "painter", "nodes": ["denoise"], "ranks": [1]},
        ],
    }  # fmt: skip
    with serving_of(write_deployment(folder, deployment)) as running:
        yield running


@pytest.fixture
def policy_client(policy_serving: Serving) -> Iterator[Client]:
    with policy_serving.connect() as connected:
        yield connected
        assert_nothing_is_held(connected)


@pytest.fixture
def channel(policy_serving: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(policy_serving.address) as opened:
        yield opened


@pytest.fixture(scope="module")
def painter() -> Published:
    return published("diffusion_tiny", "ddim")


def arrays(policy: Published, index: int) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in policy.inputs(index).items()}


def seen(policy: Published, index: int) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Images by camera, and the state."""
    given = arrays(policy, index)
    images = {name.removeprefix("image_"): image for name, image in given.items() if name.startswith("image_")}
    return images, given.get("state")


def observed(policy: Published, index: int, moment: int | None = None, **fields: Any) -> wire.Observation:
    """`moment`: one of those that a window of observations holds."""
    images, state = seen(policy, index)
    if moment is not None:
        assert state is not None
        images, state = {name: image[moment] for name, image in images.items()}, state[moment]
    raw = {
        name: tensor_pb2.Image(
            encoding=tensor_pb2.Image.ENCODING_RAW, data=image.tobytes(), height=image.shape[0], width=image.shape[1],
            channels=3,
        )
        for name, image in images.items()
    }  # fmt: skip
    return wire.Observation(images=raw, state=None if state is None else tensor_from_array(state), **fields)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_task_gives_the_published_actions(policy_client: Client, act: Published, index: int) -> None:
    (output,) = policy_client.run("arm", "act", arrays(act, index))
    close(output.value, act.expected["actions"][index])


def test_many_at_once_get_what_each_gets_alone(policy_client: Client, act: Published, painter: Published) -> None:
    def ask(index: int) -> float:
        name, policy = (("arm", act), ("painter", painter))[index % 2]
        given, expected = arrays(policy, index % 3), policy.expected["actions"][index % 3].numpy()
        (actions,) = (output.value for output in policy_client.run(name, "act", given) if output.name == "actions")
        return float(np.abs(actions - expected).max())

    with ThreadPoolExecutor(12) as pool:
        assert max(pool.map(ask, range(12))) < 1e-5


def test_a_robot_gets_the_published_chunk(policy_client: Client, act: Published) -> None:
    images, state = seen(act, 0)
    with policy_client.control("arm", **PATIENT) as robot:
        robot.wait_for_first_action(20, images, state)
        chunk = robot.latest()
        assert chunk is not None
        close(chunk.actions, act.expected["actions"][0])
        action = robot.act(images, state)
        assert (action.kind, action.index) == ("chunk", 0)
        close(action.action, act.expected["actions"][0][0])


def test_a_robot_without_state_is_served(policy_client: Client) -> None:
    policy = published("act_tiny", "no_state")
    with policy_client.control("blind", **PATIENT) as robot:
        robot.wait_for_first_action(20, seen(policy, 2)[0])
        chunk = robot.latest()
        assert chunk is not None
        close(chunk.actions, policy.expected["actions"][2])


def test_the_session_makes_the_ensemble(channel: grpc.Channel, act: Published) -> None:
    """One action is executed between two observations; the mean is over all chunks that cover a tick, oldest first."""
    chunking = wire.RealTimeChunking(mode=wire.RealTimeChunking.MODE_TEMPORAL_ENSEMBLE, ensemble_decay=0.5)
    robot = Robot(channel, model="arm", instruction="", control_hz=10.0, budget_ms=20e3, schema=None, chunking=chunking)
    robot.hear("opened")
    plain = act.expected["actions"].numpy()
    for tick in range(3):
        where = {} if tick == 0 else {"executed_chunk_seq": tick}
        robot.say(observation=observed(act, tick, seq=tick + 1, executed_index=0 if tick else -1, **where))
        chunk = robot.hear("chunk")
        expected = np.zeros_like(plain[0])
        for row in range(6):
            covering = [plain[first][tick + row - first] for first in range(tick + 1) if tick + row - first < 6]
            weights = np.exp(-0.5 * np.arange(len(covering)))
            expected[row] = (weights[:, None] * covering).sum(0) / weights.sum()
        assert np.abs(actions_of(chunk) - expected).max() < 1e-5
    robot.close()


def test_what_does_not_fit_is_told_before_anything_moves(policy_client: Client, act: Published) -> None:
    with pytest.raises(FailedPrecondition, match="takes no instruction"):
        policy_client.control("arm", control_hz=10.0, instruction="pick it up")
    wrong = RobotSchema(cameras=(), state=VectorSchema(3), action=VectorSchema(4))
    with pytest.raises(FailedPrecondition) as refused:
        policy_client.control("arm", control_hz=10.0, schema=wrong)
    for difference in ("camera 'top'", "camera 'wrist'", "state has 3 numbers"):
        assert difference in str(refused.value)
    with pytest.raises(FailedPrecondition, match="guided"):
        policy_client.control("arm", control_hz=10.0, chunking="guided")
    for option in ("seed", "num_denoise_steps"):
        with pytest.raises(InvalidArgument, match=f"unknown option '{option}'"):
            list(policy_client.run("arm", "act", arrays(act, 0), **{option: 1}))


def test_a_window_of_observations_gives_the_published_actions(policy_client: Client, painter: Published) -> None:
    for index in range(3):
        outputs = {output.name: output.value for output in policy_client.run("painter", "act", arrays(painter, index))}
        close(outputs["actions"], painter.expected["actions"][index])
        assert int(outputs["num_denoise_steps"]) == 6


def test_the_session_keeps_the_history(channel: grpc.Channel, policy_client: Client, painter: Published) -> None:
    """Observations come one by one; each chunk is that of the window that ends with it, and a new episode begins with
    nothing of the last."""
    noise = painter.inputs(0)["noise"].numpy()
    robot = Robot(channel, model="painter", instruction="", control_hz=10.0, budget_ms=20e3, schema=None)
    robot.hear("opened")

    def chunk(seq: int, moment: int, **fields: Any) -> np.ndarray:
        sent = observed(painter, 0, moment, seq=seq, noise=tensor_from_array(noise), **fields)
        robot.say(observation=sent)
        heard = robot.hear("chunk")
        assert heard.num_denoise_steps == 6
        return actions_of(heard)

    def of_window(*moments: int) -> np.ndarray:
        window = {
            name: array if name == "noise" else array[list(moments)] for name, array in arrays(painter, 0).items()
        }
        outputs = {output.name: output.value for output in policy_client.run("painter", "act", window)}
        return outputs["actions"]

    assert np.abs(chunk(1, 0) - of_window(0, 0, 0)).max() < 1e-5
    assert np.abs(chunk(2, 1) - of_window(0, 0, 1)).max() < 1e-5
    close(chunk(3, 2), painter.expected["actions"][0])
    robot.say(reset=wire.ResetEpisode(epoch=1))
    robot.hear("event")
    anew = chunk(4, 2, epoch=1)
    assert np.abs(anew - of_window(2, 2, 2)).max() < 1e-5
    assert np.abs(anew - painter.expected["actions"][0].numpy()).max() > 1e-3
    robot.close()


def test_equal_seeds_give_a_robot_equal_chunks(policy_client: Client, painter: Published) -> None:
    images, state = seen(painter, 1)
    assert state is not None

    def first_chunk(**options: Any) -> np.ndarray:
        with policy_client.control("painter", **PATIENT, **options) as robot:
            robot.wait_for_first_action(20, {name: image[0] for name, image in images.items()}, state[0])
            chunk = robot.latest()
            assert chunk is not None
            assert chunk.num_denoise_steps == options.get("num_denoise_steps", 6)
            return chunk.actions

    first = first_chunk(seed=5)
    assert np.array_equal(first, first_chunk(seed=5))
    assert np.abs(first - first_chunk(seed=6)).max() > 1e-3
    assert np.abs(first - first_chunk(seed=5, num_denoise_steps=2)).max() > 1e-3
