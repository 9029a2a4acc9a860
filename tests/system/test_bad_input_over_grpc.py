"""Every bad input: the right status, one sentence, the next request is served, and nothing is left behind.

The context has two frames, so that it travels through shared memory and not inside of a message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
from serving import Serving, assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import InvalidArgument, ResourceExhausted
from mstar_rt.protos import request_pb2, tensor_pb2, world_model_pb2_grpc
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SIZE, PATCHES, WIDTH, LIMIT = 64, 16, 64, 32
RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)


def numbers(shape: tuple[int, ...], value: float = 0.0, dtype: str = "float32") -> tensor_pb2.Tensor:
    return tensor_from_array(np.full(shape, value, dtype))


def frames(array: np.ndarray = PIXELS) -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=tensor_from_array(array))


def jpeg(data: bytes) -> tensor_pb2.Frames:
    image = tensor_pb2.Image(encoding=tensor_pb2.Image.ENCODING_JPEG, data=data)
    return tensor_pb2.Frames(images=tensor_pb2.ImageSequence(images=[image]))


def pngs(size: int, count: int) -> tensor_pb2.Frames:
    data = cv2.imencode(".png", np.zeros((size, size, 3), np.uint8))[1].tobytes()
    image = tensor_pb2.Image(encoding=tensor_pb2.Image.ENCODING_PNG, data=data)
    return tensor_pb2.Frames(images=tensor_pb2.ImageSequence(images=[image] * count))


def a_jpeg(size: int = SIZE) -> bytes:
    return bytes(cv2.imencode(".jpg", PIXELS[0, :size, :size])[1].tobytes())


def context(**fields: Any) -> wire.Context:
    past = {"state": numbers((7,)), "actions": numbers((1, 7))}
    return wire.Context(**{"frames": frames(), **past, **fields})


def latents(num_frames: int) -> wire.Context:
    view = numbers((num_frames, PATCHES, WIDTH))
    return wire.Context(latents=view, state=numbers((7,)), actions=numbers((num_frames - 1, 7)))


def encode(**fields: Any) -> wire.EncodeRequest:
    return wire.EncodeRequest(**{"model": "tiny", "frames": frames(), **fields})


def rollout(actions: tensor_pb2.Tensor | None = None, **fields: Any) -> wire.RolloutRequest:
    states = fields.pop("states", None)
    imagined = wire.Rollout(actions=numbers((2, 7)) if actions is None else actions, states=states)
    return wire.RolloutRequest(**{"model": "tiny", "context": context(), "rollout": imagined, **fields})


def plan(options: dict[str, Any] | None = None, **fields: Any) -> wire.PlanRequest:
    small = {"num_samples": 8, "num_elites": 4, "num_iterations": 1, "rollout_horizon": 1}
    planner = wire.PlannerOptions(**{**small, **(options or {})})
    goal = wire.Goal(frames=frames(PIXELS[:1]))
    return wire.PlanRequest(**{"model": "tiny", "context": context(), "goal": goal, "planner": planner, **fields})


def pins(*dimensions: int) -> list[wire.PinnedDimension]:
    return [wire.PinnedDimension(dimension=dimension, value=0.0) for dimension in dimensions]


def with_option(name: str, value: request_pb2.OptionValue) -> wire.PlanRequest:
    request = plan()
    request.planner.model_options[name].CopyFrom(value)
    return request


def with_float(value: float) -> np.ndarray:
    array = np.zeros((2, SIZE, SIZE, 3), np.float32)
    array[1, 2, 3, 0] = value
    return array


@dataclass(frozen=True)
class Bad:
    """A request, and the words that its answer must have in this order."""

    name: str
    request: Any
    words: tuple[str, ...]
    code: grpc.StatusCode = field(default=grpc.StatusCode.INVALID_ARGUMENT)


FAR = np.array([[0.01, -0.2, 0, 0, 0, 0, 0.5]], np.float32)
NOT_FOUND, UNIMPLEMENTED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
FLAG = request_pb2.OptionValue(flag=True)

BAD = [
    Bad("wrong shape of actions", rollout(numbers((2, 6))), ("tiny.rollout", "'actions'", "[1, 2, 6]", "expected", "7]")),
    Bad("wrong shape of the state", rollout(context=context(state=numbers((8,)))), ("'state'", "[8]", "expected [7]")),
    Bad("wrong dtype", rollout(numbers((2, 7), dtype="float64")), ("'actions'", "float64", "expected float32")),
    Bad("wrong dtype of frames", encode(frames=frames(with_float(0).astype(np.float64))),
        ("tiny.encode", "'frames'", "float64", "expected uint8 or float32")),
    Bad("NaN in actions", rollout(numbers((2, 7), np.nan)), ("'actions'", "NaN", "finite")),
    Bad("NaN in float frames", encode(frames=frames(with_float(np.nan))), ("'frames'", "NaN", "finite")),
    Bad("float frames of 0 to 255", encode(frames=frames(with_float(255))), ("up to 255", "expected normalised", "uint8")),
    Bad("unknown model", encode(model="tinny"), ("'tinny'", "'tiny'"), NOT_FOUND),
    Bad("unknown option", with_option("num_sample", FLAG), ("tiny.plan", "'num_sample'", "did you mean 'num_samples'")),
    Bad("option of another planner", plan({"temperature": 1.0}), ("'temperature'", "mppi")),
    Bad("a tree of other candidates", plan({"tree_branching": [4]}), ("'tree_branching'", "4 candidates", "num_samples=4")),
    Bad("a stride over the window", plan({}), ("'window_stride' is 3", "context_window = 2")),
    Bad("more frames than the window shows", plan({}), ("2 context frames", "context_window = 1")),
    Bad("option given twice", with_option("num_samples", request_pb2.OptionValue(integer=8)), ("'num_samples'", "twice")),
    Bad("option of the wrong kind", with_option("momentum_mean", FLAG), ("'momentum_mean'", "True", "expected float")),
    Bad("horizon over the limit", plan({"rollout_horizon": LIMIT + 1}), ("'rollout_horizon'", "33", "1 to 32")),
    Bad("more actions than the limit", rollout(numbers((LIMIT + 1, 7))), ("'actions'", "H = 33", "32")),
    Bad("context and horizon over the limit", rollout(numbers((LIMIT, 7))),
        ("2 context frames", "rollout_horizon 32", "33 frames", "takes 32")),
    Bad("context and horizon of a plan", plan({"rollout_horizon": 2}, context=latents(LIMIT)),
        ("32 context frames", "33 frames", "takes 32")),
    Bad("context over the limit", rollout(context=latents(LIMIT + 1)), ("'context_latents'", "T = 33", "32")),
    Bad("wrong frame size", encode(frames=frames(PIXELS[:, :48])), ("'frames'", "[2, 48, 64, 3]", "64, 64, 3")),
    Bad("wrong goal size", plan(goal=wire.Goal(frames=frames(PIXELS[:1, :48]))), ("'goal_frames'", "expected [G=1, 64, 64, 3]")),
    Bad("wrong JPEG size", encode(frames=jpeg(a_jpeg(32))), ("'frames'", "[1, 32, 32, 3]", "64, 64, 3")),
    Bad("two goals", plan(goal=wire.Goal(frames=frames())), ("there are 2 goals", "'last'", "'per_step' or 'nearest'")),
    Bad("goals for other steps", plan(goal=wire.Goal(frames=frames(), use=wire.Goal.USE_PER_STEP)), ("2 goals", "rollout_horizon is 1")),
    Bad("more elites than samples", plan({"num_elites": 9}), ("'num_elites'", "9", "num_samples = 8")),
    Bad("no frames in the tensor", encode(frames=frames(PIXELS[:0])), ("'frames'", "[0, 64, 64, 3]", "expected")),
    Bad("frames unset", encode(frames=tensor_pb2.Frames()), ("'frames'", "empty", "at least one frame")),
    Bad("no images", encode(frames=tensor_pb2.Frames(images=tensor_pb2.ImageSequence())), ("'frames'", "0 images", "expected 1")),
    Bad("cut JPEG", encode(frames=jpeg(a_jpeg()[:200])), ("'frames[0]'", "JPEG", "cannot be decoded")),
    Bad("JPEG of random bytes", encode(frames=jpeg(RNG.bytes(500))), ("'frames[0]'", "JPEG", "cannot be decoded")),
    Bad("PNG files that swell", encode(frames=pngs(4096, 40)), ("the 40 images", "4096 x 4096", "67108864 pixels")),
    Bad("context unset", plan(context=wire.Context(state=numbers((7,)))), ("context is empty", "frames or latents")),
    Bad("goal unset", wire.PlanRequest(model="tiny", context=context()), ("no goal", "expected", "frames or their latents")),
    Bad("goal empty", plan(goal=wire.Goal()), ("goal is empty", "expected", "frames or their latents")),
    Bad("state unset", plan(context=context(state=None)), ("'state'", "missing", "[7]")),
    Bad("actions unset", wire.RolloutRequest(model="tiny", context=context()), ("no actions", "expected float32")),
    Bad("past without actions", plan(context=context(actions=None)), ("0 context_actions", "2 context frames", "expected 1")),
    Bad("past with too many actions", plan(context=context(actions=numbers((2, 7)))), ("'context_actions'", "[2, 7]", "[1, A]")),
    Bad("contradictory poses", plan(context=context(states=numbers((2, 7), 0.5))), ("context_states", "differs from state")),
    Bad("contradictory first pose", rollout(states=numbers((2, 7), 0.5)), ("first of states", "differs from state")),
    Bad("warm start without a session", plan({"warm_start": True}), ("warm_start", "session")),
    Bad("initial mean of another horizon", plan({"initial_mean": numbers((2, 7))}), ("'initial_mean'", "[2, 7]", "[1, 7]")),
    Bad("initial mean that moves too far", plan({"initial_mean": tensor_from_array(FAR)}),
        ("'initial_mean'", "0.2 m", "max_displacement = 0.05")),
    Bad("initial mean with a rotation", plan({"initial_mean": numbers((1, 7), 0.1)}), ("'initial_mean'", "rotation")),
    Bad("pinned twice", plan({"pinned": pins(2, 2)}), ("dimension 2", "more than once")),
    Bad("pinned beyond", plan({"pinned": pins(4)}), ("'pinned_dims'", "4", "0 to 3")),
    Bad("gripper closes beyond the horizon", plan({"close_gripper_step": 3}), ("'close_gripper_step'", "3", "rollout_horizon = 1")),
    Bad("no elites", plan({"num_elites": 1}), ("'num_elites'", "1", "2 to")),
    Bad("share above one", plan({"momentum_mean": 1.5}), ("'momentum_mean'", "1.5", "0.0 to 1.0")),
    Bad("no sequences", rollout(numbers((0, 2, 7))), ("'actions'", "[0, 2, 7]", "expected")),
    Bad("no steps", rollout(numbers((0, 7))), ("'actions'", "[1, 0, 7]", "expected")),
    Bad("seed beyond 63 bits", plan({"seed": 2**63}), ("'seed'", "9223372036854775808", "expected 0 to")),
    Bad("option of an encoding", encode(model_options={"spice": FLAG}), ("tiny.encode", "unknown option 'spice'")),
    Bad("two horizons", rollout(), ("'rollout_horizon' is 5", "H = 2")),
    Bad("criticality of control", plan(), ("criticality control", "Robot.Control")),
    Bad("budget of nothing", plan(), ("budget_ms", "-1", "positive")),
    Bad("goal weights", plan(goal=wire.Goal(frames=frames(PIXELS[:1]), weights=numbers((1,)))), ("goal_weights", "one goal")),
    Bad("extrinsics", plan(context=context(extrinsics=numbers((2, 6)))), ("unknown tensor 'extrinsics'",)),
    Bad("output of a goal distance", rollout(), ("goal_distance without a goal", "latents")),
    Bad("shared memory", encode(frames=tensor_pb2.Frames(tensor=tensor_pb2.Tensor(
        dtype=tensor_pb2.DTYPE_UINT8, shape=[1, SIZE, SIZE, 3], shared=tensor_pb2.SharedMemoryRef(region="r")))),
        ("'frames'", "shared memory", "`data`"), UNIMPLEMENTED),
    Bad("message too large", encode(frames=frames(np.zeros((1, 1200, 1200, 3), np.uint8))), ("larger than max",), EXHAUSTED),
]  # fmt: skip
BY_NAME = {bad.name: bad.request for bad in BAD}
BY_NAME["budget of nothing"].options.budget_ms = -1
BY_NAME["criticality of control"].options.criticality = request_pb2.CRITICALITY_CONTROL
BY_NAME["output of a goal distance"].rollout.output = wire.Rollout.OUTPUT_GOAL_DISTANCE
for stride_or_window, name, value in (
    ("window_stride", "a stride over the window", 3),
    ("context_window", "a stride over the window", 2),
    ("context_window", "more frames than the window shows", 1),
):
    BY_NAME[name].planner.model_options[stride_or_window].integer = value
BY_NAME["two horizons"].rollout.model_options["rollout_horizon"].integer = 5


@pytest.fixture(scope="module")
def world_model(serving: Serving) -> Iterator[Any]:
    with grpc.insecure_channel(serving.address, [("grpc.max_send_message_length", -1)]) as channel:
        yield world_model_pb2_grpc.WorldModelStub(channel)


def answer(world_model: Any, request: Any) -> None:
    """Send it by the method that takes it, and read all that comes back."""
    method = {wire.EncodeRequest: "Encode", wire.RolloutRequest: "Rollout", wire.PlanRequest: "Plan"}[type(request)]
    response = getattr(world_model, method)(request, timeout=20)
    if method != "Encode":
        list(response)


def test_the_requests_that_the_bad_ones_differ_from_are_served(world_model: Any, client: Client) -> None:
    for request in (encode(), encode(frames=jpeg(a_jpeg())), rollout(), plan(), rollout(context=latents(LIMIT - 1))):
        answer(world_model, request)
    assert_nothing_is_held(client)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name.replace(" ", "_"))
def test_a_bad_request_is_one_sentence_and_leaves_nothing(world_model: Any, client: Client, bad: Bad) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        answer(world_model, bad.request)
    code, sentence = caught.value.code(), caught.value.details()
    assert code is bad.code, f"{code}: {sentence}"
    position = 0
    for word in bad.words:
        assert word in sentence[position:], f"{word!r} is missing in: {sentence}"
        position = sentence.index(word, position)
    assert "\n" not in sentence
    assert len(sentence) < 400
    answer(world_model, encode())
    assert_nothing_is_held(client)


def test_more_pages_than_there_are(client: Client) -> None:
    """`small` has 56 pages: 64 candidates need 64 in their first step, whoever else is there, so that trying again is no use."""
    view = {"latents": np.zeros((1, PATCHES, WIDTH), np.float32), "goal_latents": np.ones((PATCHES, WIDTH), np.float32)}
    search: Callable[..., Any] = lambda **options: client.plan("small", None, None, np.zeros(7), **view, **options)  # noqa: E731
    free = client.stats().processes["worker/1"]["pages_free/small/world"]
    with pytest.raises(InvalidArgument, match=r"64 .*56.*fewer samples"):
        search(num_samples=64, rollout_horizon=2)
    assert search(num_samples=48, rollout_horizon=2).actions.shape == (2, 7)
    assert_nothing_is_held(client)
    assert client.stats().processes["worker/1"]["pages_free/small/world"] == free == 56


def test_two_plans_that_only_fit_one_after_the_other(client: Client) -> None:
    """Both need more pages than the other leaves: one is served, the other is served or told to come again."""
    view = {"latents": np.zeros((1, PATCHES, WIDTH), np.float32), "goal_latents": np.ones((PATCHES, WIDTH), np.float32)}
    options = {"num_samples": 25, "num_elites": 5, "rollout_horizon": 3, "num_iterations": 3}
    alone = client.plan("small", None, None, np.zeros(7), **view, **options)
    streams = [client.plan_stream("small", None, None, np.zeros(7), **view, **options) for _ in range(2)]
    plans = []
    for stream in streams:
        with contextlib.suppress(ResourceExhausted):
            plans.append(list(stream)[-1])
    assert plans
    for plan_made in plans:
        np.testing.assert_allclose(plan_made.actions, alone.actions, rtol=0, atol=1e-5)
    assert_nothing_is_held(client)
