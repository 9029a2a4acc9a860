"""What `control` and `act` take: each right value reaches the wire, each wrong one is one sentence that says what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_policy_server import FakePolicyServer, fake_policy_server, picture, policy_schema

from mstar_rt.client import CameraSchema, Client, RobotSchema, VectorSchema, connect
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2 as wire

RIGHT = {"model": "toy", "control_hz": 20.0, "instruction": "push"}
POLICY = policy_info(policy_schema())
OWN = POLICY.schema
NAN = float("nan")


@pytest.fixture(scope="module")
def running() -> Iterator[FakePolicyServer]:
    with fake_policy_server() as running:
        yield running


@pytest.fixture
def server(running: FakePolicyServer) -> FakePolicyServer:
    running.forget()
    return running


@pytest.fixture(scope="module")
def client(running: FakePolicyServer) -> Iterator[Client]:
    with connect(running.address) as connected:
        yield connected


def opening(server: FakePolicyServer, client: Client, **settings: Any) -> wire.OpenControl:
    with client.control(**{**RIGHT, **settings}):
        return server.stream().opening


# ---- what reaches the wire

UNSET = (
    "replan_every", "chunking", "num_denoise_steps", "seed", "anytime",
)  # fmt: skip


def test_the_least_that_is_said(server: FakePolicyServer, client: Client) -> None:
    said = opening(server, client)
    assert (said.model, said.instruction, said.control_hz, said.epoch) == ("toy", "push", 20.0, 0)
    assert said.schema == policy_schema().schema, "the policy's own"
    assert not any(said.HasField(name) for name in UNSET)
    assert not said.model_options
    assert said.budget_ms == 1000.0, "as long as its actions would be executed"
    assert opening(server, client, max_action_age_s=0.3).budget_ms == 300.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("instruction", "touch"), ("control_hz", 50), ("replan_every", 4), ("budget_ms", 12.5), ("num_denoise_steps", 5),
     ("seed", 2**64 - 1), ("epoch", 9)],
)  # fmt: skip
def test_a_setting_is_said(server: FakePolicyServer, client: Client, name: str, value: Any) -> None:
    assert getattr(opening(server, client, **{name: value}), name) == value


@pytest.mark.parametrize("deadline", [{"budget_ms": 50.0}, {"max_action_age_s": 0.05}])
def test_anytime_is_said_with_its_deadline(server: FakePolicyServer, client: Client, deadline: dict[str, Any]) -> None:
    said = opening(server, client, anytime=True, **deadline)
    assert (said.anytime, said.budget_ms) == (True, 50.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"chunking": "guided"}, {"mode": 1}),
        ({"chunking": "guided_identity", "schedule": "exponential"}, {"mode": 2, "schedule": 2}),
        ({"chunking": "guided", "schedule": "linear"}, {"mode": 1, "schedule": 1}),
        ({"chunking": "guided", "schedule": "ones"}, {"mode": 1, "schedule": 3}),
        ({"chunking": "guided", "schedule": "zeros"}, {"mode": 1, "schedule": 4}),
        ({"chunking": "guided", "max_guidance_weight": 5.0}, {"mode": 1, "max_guidance_weight": 5.0}),
        ({"chunking": "guided", "prefix_attention_horizon": 6}, {"mode": 1, "prefix_attention_horizon": 6}),
        ({"chunking": "prefix", "delay": 4}, {"mode": 3, "delay": 4}),
        ({"chunking": "temporal_ensemble", "ensemble_decay": 0.1}, {"mode": 4, "ensemble_decay": 0.1}),
    ],
)
def test_chunking_is_said(
    server: FakePolicyServer, client: Client, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert opening(server, client, **settings).chunking == wire.RealTimeChunking(**expected)


def test_memory_is_offered_unless_it_is_not_wanted(server: FakePolicyServer, client: Client) -> None:
    assert opening(server, client).HasField("shared_memory")
    assert not opening(server, client, shared_memory=False).HasField("shared_memory")


def test_options_of_the_model_are_said(server: FakePolicyServer, client: Client) -> None:
    said = opening(server, client, temperature=0.5, greedy=True)
    assert said.model_options["temperature"].number == 0.5
    assert said.model_options["greedy"].flag is True


def test_the_robots_schema_is_said(server: FakePolicyServer, client: Client) -> None:
    one_eyed = dataclasses.replace(OWN, cameras=OWN.cameras[:1], state=VectorSchema(3))
    said = opening(server, client, schema=one_eyed).schema
    assert [camera.name for camera in said.cameras] == ["top"]
    assert (said.state.size, list(said.state.names)) == (3, [])
    assert list(said.action.units) == ["m", "m"]


def test_normalization_is_chosen_in_the_schema(server: FakePolicyServer, client: Client) -> None:
    server.policy = policy_schema(normalizations=["droid", "libero"])
    with pytest.raises(FailedPrecondition, match="say in the schema which of droid, libero"):
        client.control(**RIGHT)
    with pytest.raises(FailedPrecondition, match="normalization 'libera' is unknown to it, did you mean 'libero'"):
        client.control(**RIGHT, schema=dataclasses.replace(OWN, normalization="libera"))
    said = opening(server, client, schema=dataclasses.replace(OWN, normalization="droid"))
    assert said.schema.normalization == "droid"


def test_a_policy_is_described(server: FakePolicyServer, client: Client) -> None:
    policy = client.describe("toy").policy
    assert policy == POLICY
    assert policy.chunking == ("guided", "guided_identity", "prefix", "temporal_ensemble")
    assert (policy.action_horizon, policy.max_prefix_delay, policy.takes_instruction) == (8, 4, True)
    assert policy.anytime
    assert policy.schema.cameras == (CameraSchema("top", 8, 8), CameraSchema("wrist", 8, 8, may_be_masked=True))
    assert policy.schema.state == VectorSchema(3, ("x", "y", "grip"), ("m", "m", ""))
    server.policy = None
    assert client.describe("toy").policy is None


# ---- what is refused before anything is sent

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"replan_every": 5, "chunking": "guided", "delay": 4}, "together at most the 8 actions of a chunk"),
    ({"replan_every": 8, "max_action_age_s": 0.2}, "at 20 Hz a chunk is used for 0.4 s: replan more often"),
    ({"heartbeat_timeout_s": 0.01}, "heartbeat_timeout_s is 0.01, expected at least 0.1"),
    ({"noise": [0.0]}, "noise belongs to each observation: give it to `act`"),
    ({"masked_cameras": ["wrist"]}, "masked_cameras belongs to each observation: give it to `act`"),
    ({"model": 5}, "model is 5, expected text"),
    ({"control_hz": 0}, "control_hz is 0, expected a positive number, at most 10000"),
    ({"control_hz": NAN}, "control_hz is nan, expected a positive number"),
    ({"control_hz": "20"}, "control_hz is '20'"),
    ({"control_hz": True}, "control_hz is True"),
    ({"control_hz": 1e9}, "control_hz is 1000000000.0"),
    ({"instruction": 5}, "instruction is 5, expected text"),
    ({"schema": {"cameras": []}}, "schema is .*, expected a RobotSchema, or None for the policy's own"),
    ({"chunking": "rtc"}, "chunking is 'rtc', expected None or one of guided, guided_identity, prefix, temporal_ensemble"),
    ({"chunking": ["guided"]}, "chunking is .*, expected None or one of"),
    ({"schedule": "linear"}, "schedule is given with chunking None, .* leave it out, or use chunking 'guided' or"),
    ({"chunking": "prefix", "schedule": "linear"}, "schedule is given with chunking 'prefix', which has no use for it"),
    ({"chunking": "guided", "schedule": "cosine"}, "schedule is 'cosine', expected one of linear, exponential, ones, zeros"),
    ({"max_guidance_weight": 5.0}, "max_guidance_weight is given with chunking None"),
    ({"chunking": "guided", "max_guidance_weight": NAN}, "max_guidance_weight is nan, expected a number"),
    ({"prefix_attention_horizon": 5}, "prefix_attention_horizon is given with chunking None"),
    ({"chunking": "guided", "prefix_attention_horizon": 0}, "prefix_attention_horizon is 0, expected a whole number from 1"),
    ({"chunking": "guided", "prefix_attention_horizon": 9}, "prefix_attention_horizon is 9, expected at most 8: a chunk has 8"),
    ({"delay": 3}, "delay is given with chunking None"),
    ({"chunking": "temporal_ensemble", "delay": 3}, "delay is given with chunking 'temporal_ensemble'"),
    ({"chunking": "guided", "delay": -1}, "delay is -1, expected a whole number from 0"),
    ({"chunking": "guided", "delay": 8}, "delay is 8, expected at most 7: a chunk has 8 actions"),
    ({"chunking": "prefix", "delay": 5}, "delay is 5, which is too large: 'toy' is trained for 4"),
    ({"chunking": "guided", "delay": 5, "prefix_attention_horizon": 4}, "prefix_attention_horizon is 4, expected at least the delay"),
    ({"ensemble_decay": 0.1}, "ensemble_decay is given with chunking None, .* use chunking 'temporal_ensemble'"),
    ({"chunking": "temporal_ensemble", "ensemble_decay": "x"}, "ensemble_decay is 'x', expected a number"),
    ({"replan_every": 0}, "replan_every is 0, expected a whole number from 1"),
    ({"replan_every": 9}, "replan_every is 9, expected at most 8: a chunk has 8 actions"),
    ({"budget_ms": -1}, "budget_ms is -1, expected a positive number of milliseconds"),
    ({"anytime": 1}, "anytime is 1, expected True or False"),
    ({"anytime": True}, "would miss its deadline, and there is none: give budget_ms, e.g. 50, one control period"),
    ({"num_denoise_steps": 2.5}, "num_denoise_steps is 2.5, expected a whole number from 1"),
    ({"seed": -1}, "seed is -1, expected a whole number from 0"),
    ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"epoch": 1.5}, "epoch is 1.5, expected a whole number from 0"),
    ({"hold": "freeze"}, "hold is 'freeze', expected an action, \"repeat_last\" or None"),
    ({"hold": [0.0, NAN]}, "hold is an action with NaN or infinity"),
    ({"hold": [0.0, 0.0, 0.0]}, r"hold has shape \[3\], expected an action of 2 numbers"),
    ({"hold": {"a": 1}}, "hold is {'a': 1}, expected an action"),
    ({"max_action_age_s": 0}, "max_action_age_s is 0, expected a positive number"),
    ({"heartbeat_timeout_s": -1}, "heartbeat_timeout_s is -1, expected a positive number"),
    ({"heartbeat_timeout_s": None}, "heartbeat_timeout_s is None, expected a positive number"),
    ({"open_timeout_s": NAN}, "open_timeout_s is nan, expected a positive number"),
    ({"shared_memory": "yes"}, "shared_memory is 'yes', expected True, False or \"auto\""),
    ({"shared_memory": 1}, "shared_memory is 1, expected"),
    ({"temperature": {"a": 1}}, "option 'temperature' is {'a': 1}"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[f"{i}-{next(iter(w))}" for i, (w, _) in enumerate(WRONG)])
def test_a_wrong_setting_is_one_sentence(
    server: FakePolicyServer, client: Client, wrong: dict[str, Any], sentence: str
) -> None:
    before = server.num_streams
    with pytest.raises(InvalidArgument, match=sentence) as failure:
        client.control(**{**RIGHT, **wrong})
    assert "\n" not in str(failure.value)
    assert server.num_streams == before, "nothing has been sent"


def test_a_policy_is_asked_for_what_it_does_only(server: FakePolicyServer, client: Client) -> None:
    with pytest.raises(FailedPrecondition, match="the policy 'toy' takes an instruction: give one"):
        client.control("toy", control_hz=20.0)
    server.policy = policy_schema(takes_instruction=False, chunking=[1], anytime=False)
    with pytest.raises(FailedPrecondition, match="the policy 'toy' takes no instruction: leave it out"):
        client.control(**RIGHT)
    with pytest.raises(FailedPrecondition, match="has no chunking 'prefix', known: guided"):
        client.control("toy", control_hz=20.0, chunking="prefix")
    with pytest.raises(
        FailedPrecondition, match="the policy 'toy' has no denoise steps to leave out: leave out anytime"
    ):
        client.control("toy", control_hz=20.0, anytime=True, budget_ms=50)
    with client.control("toy", control_hz=20.0) as robot:
        for call in (robot.set_instruction, robot.reset):
            with pytest.raises(FailedPrecondition, match="the policy 'toy' takes no instruction"):
                call("push")


def test_all_that_does_not_fit_is_told_at_once(server: FakePolicyServer, client: Client) -> None:
    robot = RobotSchema(
        cameras=(CameraSchema("topp", 8, 8), CameraSchema("wrist", 480, 640)),
        state=VectorSchema(2),
        action=VectorSchema(2, names=("x", "z"), units=("m", "m")),
        normalization="droid",
    )
    before = server.num_streams
    with pytest.raises(FailedPrecondition) as failure:
        client.control(**RIGHT, schema=robot)
    assert str(failure.value) == (
        "the robot does not fit the policy 'toy': camera 'top' (8x8) is missing, and must not be masked; "
        "camera 'topp' is unknown to it, did you mean 'top'?; "
        "camera 'wrist' is 480x640, it expects 8x8 (height x width); "
        "the state has 2 numbers, it expects 3; the names of the action are x, z, it expects x, y; "
        "normalization 'droid' is unknown to it, none are known"
    )
    assert server.num_streams == before
    with pytest.raises(FailedPrecondition, match="the state is missing"):
        client.control(**RIGHT, schema=dataclasses.replace(OWN, state=None))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"state": VectorSchema(3, names=("x",))}, "the schema's state has 1 names for 3 numbers"),
     ({"action": VectorSchema(2, units=("m",))}, "the schema's action has 1 units for 2 numbers"),
     ({"cameras": (OWN.cameras[0], OWN.cameras[0])}, "the schema has two cameras of the name 'top'")],
)  # fmt: skip
def test_a_schema_that_contradicts_itself(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        dataclasses.replace(OWN, **changes)


IMAGES = {"top": picture(), "wrist": picture()}
SEEN = {"images": IMAGES, "state": [0.0, 0.0, 0.0]}

WRONG_SEEN: list[tuple[dict[str, Any], str]] = [
    ({"images": picture()}, "images is a ndarray, expected a mapping from cameras to images"),
    ({"images": {"top": picture()}}, "images lacks camera 'wrist': give it, or name it in masked_cameras"),
    ({"images": {**IMAGES, "left": picture()}}, "camera 'left' is not in the schema"),
    ({"images": {**IMAGES, "top": picture()[:4]}}, r"camera 'top' is uint8 \[4, 8, 3\], expected uint8 \[8, 8, 3\]"),
    ({"images": {**IMAGES, "top": picture().astype(np.float32)}}, r"camera 'top' is float32 \[8, 8, 3\]"),
    ({"images": {**IMAGES, "top": "top.png"}}, "camera 'top' is a str, expected uint8"),
    ({"images": {**IMAGES, "top": b"GIF89a"}}, "camera 'top' is 6 bytes that are neither a JPEG nor a PNG file"),
    ({"masked_cameras": ["wrist"]}, "camera 'wrist' is masked and in images: leave one of them out"),
    ({"images": {"wrist": picture()}, "masked_cameras": ["top"]}, "camera 'top' must not be masked"),
    ({"masked_cameras": ["wirst"]}, "camera 'wirst' is not in the schema, did you mean 'wrist'"),
    ({"masked_cameras": "wrist"}, "masked_cameras is 'wrist', expected a sequence of names"),
    ({"state": None}, "state is missing, expected 3 numbers"),
    ({"state": [1.0, 2.0]}, r"state has shape \[2\], expected \[3\]"),
    ({"state": "home"}, "state is 'home', expected 3 numbers"),
    ({"state": [0.0, NAN, 0.0]}, "state holds NaN or infinity, expected finite numbers"),
    ({"noise": "white"}, "noise is 'white', expected an array"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG_SEEN, ids=[f"{i}-{next(iter(w))}" for i, (w, _) in enumerate(WRONG_SEEN)])  # fmt: skip
def test_an_observation_that_does_not_fit(
    server: FakePolicyServer, client: Client, wrong: dict[str, Any], sentence: str
) -> None:
    with client.control(**RIGHT) as robot:
        stream = server.stream()
        for call in (robot.act, robot.send):
            with pytest.raises(InvalidArgument, match=sentence) as failure:
                call(**{**SEEN, **wrong})
            assert "\n" not in str(failure.value)
        robot.act(**SEEN)
        assert stream.observation().seq == 1, "what was wrong has not been sent, and the session goes on"


def test_a_state_for_a_policy_that_takes_none(server: FakePolicyServer, client: Client) -> None:
    assert server.policy is not None
    server.policy.schema.ClearField("state")
    with client.control(**RIGHT) as robot:
        with pytest.raises(InvalidArgument, match="state is given, but the schema has none: leave it out"):
            robot.act(**SEEN)
        robot.act(IMAGES)
        assert not server.stream().observation().HasField("state")


@pytest.mark.parametrize("call", ["set_instruction", "reset"])
@pytest.mark.parametrize(("instruction", "sentence"), [(5, "instruction is 5, expected text"), ("", "is empty")])
def test_an_instruction_that_says_nothing(
    server: FakePolicyServer, client: Client, call: str, instruction: Any, sentence: str
) -> None:
    with client.control(**RIGHT) as robot:
        server.stream()
        with pytest.raises(InvalidArgument, match=sentence):
            getattr(robot, call)(instruction)
        with pytest.raises(InvalidArgument, match="seed is -1"):
            robot.reset(seed=-1)
