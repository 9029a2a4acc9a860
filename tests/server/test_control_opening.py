"""Opening a control stream: what does not fit is refused before anything moves, all differences at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from control_stream import OPEN, Robot, policy_runtime, schema
from toy_policy import POLICY, SIZE, toy_policy
from toy_runtime import ToyRuntime, toy_runtime

from mstar_rt.message import Submit
from mstar_rt.model import VectorSpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import runtime_pb2, runtime_pb2_grpc

INVALID = grpc.StatusCode.INVALID_ARGUMENT
Mode = wire.RealTimeChunking


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


def refusal(channel: grpc.Channel, **opening: Any) -> grpc.RpcError:
    return Robot(channel, epoch=0, **opening).ends_with()


def test_all_differences_are_told_at_once(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    robot = wire.RobotSchema(
        cameras=[
            wire.CameraSchema(name="wrist", height=2 * SIZE, width=SIZE),
            wire.CameraSchema(name="ceiling", height=SIZE, width=SIZE),
        ],
        state=wire.VectorSchema(size=3, names=["x", "z", "grip"], units=["m", "mm", ""]),
        action=wire.VectorSchema(size=7),
        normalization="lap",
    )
    failure = refusal(channel, schema=robot, instruction="")
    assert failure.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert failure.details() == (
        "the robot does not fit policy 'toy', 8 differences: "
        "camera 'top' (16 x 16) is missing; "
        "camera 'wrist' is 32 x 16, expected 16 x 16 (height x width); "
        "camera 'ceiling' is not known, known: top, wrist; "
        "state name 1 is 'z', expected 'y'; "
        "state unit 1 is 'mm', expected 'm'; "
        "action has 7 numbers, expected 2; "
        "normalization 'lap' is not known, did you mean 'lab'?; "
        "the instruction is empty, the policy needs one; "
        "nothing was moved"
    )
    assert not runtime.seen(Submit)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"normalization": None}, "no normalization is chosen, the policy has lab, field"),
        ({"state": None}, "the robot states no state, expected 3 numbers"),
        ({"action": None}, "the robot states no action, expected 2 numbers"),
        ({"action": wire.VectorSchema(size=2, names=["x"])}, "action has 1 names for 2 numbers"),
        ({"cameras": [wire.CameraSchema(name="top", height=SIZE, width=SIZE)] * 2}, "camera 'top' is named twice"),
    ],
)
def test_one_difference(channel: grpc.Channel, changes: dict[str, Any], difference: str) -> None:
    failure = refusal(channel, schema=schema(**changes))
    assert failure.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert failure.details() == f"the robot does not fit policy 'toy', 1 difference: {difference}; nothing was moved"


def test_many_differing_names_are_counted() -> None:
    policy = replace(POLICY, state=VectorSpec(9, tuple("abcdefghi")))
    with policy_runtime(policy) as other, grpc.insecure_channel(other.address) as to_other:
        robot = schema(state=wire.VectorSchema(size=9, names=list("ABCDEFGHI")))
        details = refusal(to_other, schema=robot).details()
    assert "state name 2 is 'C', expected 'c'; state names differ at 6 more dimensions" in details


def test_a_robot_without_a_schema_takes_that_of_the_policy(channel: grpc.Channel) -> None:
    failure = refusal(channel, schema=None)
    assert "no normalization is chosen" in failure.details()
    robot = Robot(channel, epoch=0, schema=wire.RobotSchema(), instruction="push")
    assert "camera 'top' (16 x 16) is missing" in robot.ends_with().details()
    single = replace(POLICY, normalizations=("lab",))
    with policy_runtime(single) as other, grpc.insecure_channel(other.address) as to_other:
        robot = Robot(to_other, schema=None)
        opened = robot.hear("opened").schema
        assert ([each.name for each in opened.cameras], opened.normalization) == (["top", "wrist"], "lab")
        assert (opened.state.names, opened.action.units) == (["x", "y", "grip"], ["m", "m"])
        assert [each.may_be_masked for each in opened.cameras] == [False, True]
        robot.close()


def test_a_policy_without_an_instruction_refuses_one() -> None:
    policy = replace(POLICY, takes_instruction=False)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:
        assert "an instruction is given, the policy takes none" in refusal(channel).details()
        robot = Robot(channel, epoch=0, instruction="")
        robot.hear("opened")
        robot.say(set_instruction=wire.SetInstruction(instruction="push"))
        assert "policy 'toy' takes none" in robot.ends_with().details()


def test_an_anytime_session_runs_the_policys_anytime_task() -> None:
    policy = replace(POLICY, anytime_task="act_anytime")
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:
        for opening, num_steps in (
            ({"anytime": True, "num_denoise_steps": 9}, 2),
            ({"anytime": True, "model_options": {"min_denoise_steps": {"integer": 4}}}, 4),
            ({"anytime": False, "num_denoise_steps": 9}, 9),
        ):
            robot = Robot(channel, epoch=0, **opening)
            robot.hear("opened")
            robot.observe(1)
            assert robot.hear("chunk").num_denoise_steps == num_steps
            robot.close()
        for opening, sentence in (
            ({"anytime": True, "num_denoise_steps": 2}, "which is 2, down to min_denoise_steps, which is 2"),
            (
                {"model_options": {"min_denoise_steps": {"integer": 4}}},
                "min_denoise_steps says how far anytime may go, which is not set: set anytime (and budget_ms)",
            ),
            (
                {"model_options": {"anytme": {"flag": True}}},
                "toy.act: unknown option 'anytme', did you mean 'anytime'?",
            ),
            ({"model_options": {"replan": {"integer": 4}}}, "unknown option 'replan', did you mean 'replan_every'?"),
            ({"model_options": {"anytime": {"flag": True}}}, "option 'anytime' is a field of the control session"),
            (
                {"anytime": True, "chunking": {"mode": 2, "max_guidance_weight": 12.0}},
                "with 2 denoise steps a guidance over 11.6 throws the chunk past",
            ),
        ):
            failure = refusal(channel, **opening)
            assert failure.code() == INVALID
            assert sentence in failure.details()


def test_a_chunking_mode_that_the_policy_does_not_know_is_a_difference() -> None:
    policy = replace(POLICY, chunking=("guided",), max_prefix_delay=None)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:
        failure = refusal(channel, chunking=wire.RealTimeChunking(mode=Mode.MODE_PREFIX))
    assert failure.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert (
        "chunking mode 'prefix' is not served by the policy, expected guided or temporal_ensemble" in failure.details()
    )


@pytest.mark.parametrize(
    ("opening", "sentence"),
    [
        ({"control_hz": 0.0}, "control_hz is 0.0"),
        ({"model_options": {"min_denoise_steps": {"integer": 4}}}, "unknown option 'min_denoise_steps', did you mean"),
        ({"control_hz": float("nan")}, "control_hz is nan"),
        ({"control_hz": 1e5}, "at most 10000"),
        ({"replan_every": 0}, "replan_every is 0, expected 1 to 8"),
        ({"replan_every": 9}, "replan_every is 9, expected 1 to 8"),
        ({"budget_ms": 0.0}, "budget_ms is 0.0"),
        ({"anytime": True}, "has no denoise steps that it could leave out"),
        ({"num_denoise_steps": 21}, "option 'num_denoise_steps' is 21, expected 1 to 20"),
        ({"model_options": {"hold": {"number": 1.0}}}, "unknown option 'hold', did you mean 'hold_s'?"),
        ({"model_options": {"seed": {"integer": 1}}}, "option 'seed' is a field of the control session"),
        ({"chunking": {}}, "the chunking has no known mode, expected one of guided, guided_identity, prefix"),
        ({"chunking": {"mode": 1, "ensemble_decay": 0.1}}, "mode 'guided' has no use for ensemble_decay"),
        ({"chunking": {"mode": 3, "schedule": 1}}, "mode 'prefix' has no use for schedule, only for delay"),
        ({"chunking": {"mode": 4, "delay": 1}}, "mode 'temporal_ensemble' has no use for delay"),
        ({"chunking": {"mode": 4, "ensemble_decay": -2.0}}, "ensemble_decay is -2.0, expected -1 to 100"),
        (
            {"chunking": {"mode": 1, "delay": 8}},
            "the delay is 8 actions, the most that a chunk of this policy can bridge is 7",
        ),
        (
            {"chunking": {"mode": 3, "delay": 5}},
            "the delay is 5 actions, the most that the policy was trained for is 4",
        ),
        ({"chunking": {"mode": 1, "delay": 4, "prefix_attention_horizon": 3}}, "expected at least the delay"),
        ({"chunking": {"mode": 1, "prefix_attention_horizon": 9}}, "prefix_attention_horizon is 9, expected at most 8"),
        ({"chunking": {"mode": 1, "max_guidance_weight": -1.0}}, "option 'max_guidance_weight' is -1.0"),
        (
            {"chunking": {"mode": 2}, "num_denoise_steps": 1},
            "with 1 denoise step a guidance over 2 throws the chunk past",
        ),
        (
            {"chunking": {"mode": 1, "max_guidance_weight": 1e3}},
            "max_guidance_weight is 1000, but with 5 denoise steps",
        ),
        ({"chunking": {"mode": 1, "schedule": 9}}, "schedule 9 is not known"),
    ],
)
def test_an_option_out_of_place_is_refused(channel: grpc.Channel, opening: dict[str, Any], sentence: str) -> None:
    failure = refusal(channel, **opening)
    assert failure.code() == INVALID
    assert sentence in failure.details()


def test_the_model_must_be_a_policy_that_serves(channel: grpc.Channel) -> None:
    failure = refusal(channel, model="toi")
    assert (failure.code(), failure.details()) == (
        grpc.StatusCode.NOT_FOUND, "no model 'toi' is served, did you mean 'toy'?",
    )  # fmt: skip
    with toy_runtime() as planner, grpc.insecure_channel(planner.address) as to_planner:
        assert "model 'toy' is not a policy" in refusal(to_planner).details()
    with policy_runtime(serving=False) as cold, grpc.insecure_channel(cold.address) as to_cold:
        assert refusal(to_cold).code() == grpc.StatusCode.UNAVAILABLE


def test_a_policy_without_noise_takes_no_seed() -> None:
    model = toy_policy()
    (task,) = model.tasks
    params = tuple(param for param in task.params if param.name != "seed")
    model = replace(model, tasks=(replace(task, params=params),))
    with toy_runtime(model=model) as runtime, grpc.insecure_channel(runtime.address) as channel:
        assert "draws no noise: leave it unset" in refusal(channel, seed=1).details()
        robot = Robot(channel, epoch=0)
        robot.hear("opened")
        robot.say(reset=wire.ResetEpisode(epoch=1, seed=2))
        assert "draws no noise" in robot.ends_with().details()


def test_the_first_message_opens(channel: grpc.Channel) -> None:
    robot = Robot(channel)
    robot.observe(1)
    failure = robot.ends_with()
    assert failure.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "the first message of a control stream must be `open`" in failure.details()


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        ({"open": wire.OpenControl(**OPEN)}, grpc.StatusCode.FAILED_PRECONDITION, "the stream is open already"),
        ({}, INVALID, "a message of the control stream is empty"),
        ({"set_instruction": wire.SetInstruction()}, INVALID, "the instruction is empty"),
        ({"set_instruction": wire.SetInstruction(instruction=" ")}, INVALID, "the instruction is empty"),
        ({"reset": wire.ResetEpisode(epoch=3)}, INVALID, "reset to epoch 3 after 3, epochs must increase"),
    ],
)
def test_a_breach_of_protocol_ends_the_stream(
    channel: grpc.Channel, message: dict[str, Any], code: grpc.StatusCode, sentence: str
) -> None:
    robot = Robot(channel, epoch=3)
    robot.hear("opened")
    robot.say(**message)
    failure = robot.ends_with()
    assert failure.code() == code
    assert sentence in failure.details()
    assert dict(failure.trailing_metadata())["mstar-request-id"]


def test_seq_increases(channel: grpc.Channel) -> None:
    robot = Robot(channel, epoch=3)
    robot.hear("opened")
    robot.observe(2, epoch=3)
    robot.hear("chunk")
    robot.observe(2, epoch=3)
    assert robot.ends_with().details() == "observation 2 came after 2, seq must increase"


def test_describe_tells_what_a_policy_is(runtime_stub: Any) -> None:
    policy = runtime_stub.DescribeModel(runtime_pb2.DescribeModelRequest(model="toy")).policy
    assert [(each.name, each.height, each.may_be_masked) for each in policy.schema.cameras] == [
        ("top", SIZE, False), ("wrist", SIZE, True),
    ]  # fmt: skip
    assert (policy.schema.state.size, policy.schema.action.size, policy.action_horizon) == (3, 2, 8)
    assert (policy.takes_instruction, policy.num_observations, policy.max_prefix_delay) == (True, 1, 4)
    assert (policy.normalizations, policy.chunking) == (["lab", "field"], [1, 2, 3, 4])
    assert not policy.schema.HasField("normalization")


def test_a_world_model_is_no_policy() -> None:
    with toy_runtime() as planner, grpc.insecure_channel(planner.address) as channel:
        stub = runtime_pb2_grpc.RuntimeStub(channel)
        assert not stub.DescribeModel(runtime_pb2.DescribeModelRequest(model="toy")).HasField("policy")
        assert "mstar.v1.Robot" in stub.ServerInfo(runtime_pb2.ServerInfoRequest()).services
