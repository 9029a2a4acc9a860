"""Every bad input is one sentence and the right status; nothing reaches the runtime, and the next request is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
from toy_runtime import SIZE, ToyRuntime

from mstar_rt.message import Submit
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

RAW, JPEG, PNG = (
    tensor_pb2.Image.ENCODING_RAW, tensor_pb2.Image.ENCODING_JPEG, tensor_pb2.Image.ENCODING_PNG,
)  # fmt: skip


def array(shape: tuple[int, ...], dtype: str = "float32", value: float = 0) -> tensor_pb2.Tensor:
    return tensor_from_array(np.full(shape, value, dtype))


def frames(shape: tuple[int, ...] = (1, SIZE, SIZE, 3), dtype: str = "uint8") -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=array(shape, dtype))


def images(*given: tensor_pb2.Image) -> tensor_pb2.Frames:
    return tensor_pb2.Frames(images=tensor_pb2.ImageSequence(images=given))


def compressed(extension: str, shape: tuple[int, ...] = (SIZE, SIZE, 3), dtype: str = "uint8") -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    return bytes(cv2.imencode(extension, noise)[1].tobytes())


def jpeg(data: bytes, **fields: Any) -> tensor_pb2.Image:
    return tensor_pb2.Image(encoding=JPEG, data=data, **fields)


def png(data: bytes) -> tensor_pb2.Image:
    return tensor_pb2.Image(encoding=PNG, data=data)


def raw(height: int = SIZE, width: int = SIZE, channels: int = 3) -> tensor_pb2.Image:
    data = bytes(height * width * channels)
    return tensor_pb2.Image(encoding=RAW, data=data, height=height, width=width, channels=channels)


def encode(**fields: Any) -> wire.EncodeRequest:
    return wire.EncodeRequest(**{"model": "toy", "frames": frames(), **fields})


def context(**fields: Any) -> wire.Context:
    return wire.Context(**{"frames": frames(), "state": array((7,)), **fields})


def plan(**fields: Any) -> wire.PlanRequest:
    return wire.PlanRequest(**{"model": "toy", "context": context(), "goal": wire.Goal(frames=frames()), **fields})


def planner(**options: Any) -> wire.PlanRequest:
    return plan(planner=wire.PlannerOptions(**options))


def rollout(actions: tensor_pb2.Tensor | None = None, **fields: Any) -> wire.RolloutRequest:
    imagined = wire.Rollout(actions=actions or array((2, 7)))
    return wire.RolloutRequest(**{"model": "toy", "context": context(), "rollout": imagined, **fields})


def option(value: request_pb2.OptionValue, name: str = "spice") -> wire.PlanRequest:
    request = plan()
    request.planner.model_options[name].CopyFrom(value)
    return request


@dataclass(frozen=True)
class Case:
    name: str
    request: Callable[[], Any]
    sentence: str
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


NOT_FOUND, UNIMPLEMENTED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
REGION = tensor_pb2.SharedMemoryRef(region="shm-1", num_bytes=19200)

CASES = [
    Case("unknown model", lambda: encode(model="toi"), "no model 'toi' is served, did you mean 'toy'?", NOT_FOUND),
    Case("no model", lambda: encode(model=""), "no model '' is served, known: toy", NOT_FOUND),
    Case("no frames", lambda: encode(frames=None), "'frames' is empty, expected at least one frame"),
    Case("no images", lambda: encode(frames=images()), "'frames' holds 0 images, expected 1 to 1024"),
    Case(
        "zero frames",
        lambda: encode(frames=frames((0, SIZE, SIZE, 3))),
        f"toy.encode: tensor 'frames' has shape [0, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "too many frames",
        lambda: encode(frames=frames((9, SIZE, SIZE, 3))),
        "tensor 'frames' has T = 9, the limit of this model is 8",
    ),
    Case(
        "wrong frame size",
        lambda: encode(frames=frames((1, 64, SIZE, 3))),
        f"toy.encode: tensor 'frames' has shape [1, 64, {SIZE}, 3], expected [T=1, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "wrong image size",
        lambda: encode(frames=images(raw(64, 64))),
        f"toy.encode: tensor 'frames' has shape [1, 64, 64, 3], expected [T=1, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "wrong JPEG size",
        lambda: encode(frames=images(jpeg(compressed(".jpg", (64, 48, 3))))),
        f"toy.encode: tensor 'frames' has shape [1, 64, 48, 3], expected [T=1, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "images of two sizes",
        lambda: encode(frames=images(raw(), raw(40))),
        f"'frames[1]' is 40 x {SIZE} x 3, 'frames[0]' is {SIZE} x {SIZE} x 3: all frames of a request must have",
    ),
    Case(
        "dtype of frames",
        lambda: encode(frames=frames(dtype="float32")),
        "toy.encode: tensor 'frames' has dtype float32, expected uint8",
    ),
    Case(
        "rank of frames",
        lambda: encode(frames=frames((SIZE, SIZE, 3))),
        f"toy.encode: tensor 'frames' has shape [{SIZE}, {SIZE}, 3], expected [T, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "grey image",
        lambda: encode(frames=images(raw(channels=1))),
        f"tensor 'frames' has shape [1, {SIZE}, {SIZE}, 1], expected",
    ),
    Case(
        "raw image of the wrong length",
        lambda: encode(frames=images(tensor_pb2.Image(encoding=RAW, data=b"1", height=2, width=2, channels=3))),
        "raw image 'frames[0]' has 1 bytes, expected 12 for [2, 2, 3]",
    ),
    Case(
        "raw image without a size",
        lambda: encode(frames=images(tensor_pb2.Image(encoding=RAW, data=b"1"))),
        "raw image 'frames[0]' needs height, width and channels, got [0, 0, 0]",
    ),
    Case(
        "image without encoding",
        lambda: encode(frames=images(tensor_pb2.Image(data=b"1"))),
        "image 'frames[0]' has no known encoding, expected raw, JPEG or PNG",
    ),
    Case(
        "image without bytes",
        lambda: encode(frames=images(tensor_pb2.Image(encoding=JPEG))),
        "image 'frames[0]' is empty, expected its bytes in `data`",
    ),
    Case(
        "undecodable JPEG",
        lambda: encode(frames=images(jpeg(b"not a picture"))),
        "image 'frames[0]' is not a complete JPEG file: 13 bytes cannot be decoded",
    ),
    Case(
        "truncated JPEG",
        lambda: encode(frames=images(jpeg(compressed(".jpg")[:-400]))),
        "image 'frames[0]' is not a complete JPEG file",
    ),
    Case(
        "damaged PNG",
        lambda: encode(frames=images(png(compressed(".png")[:-100]))),
        "image 'frames[0]' is not a complete PNG file",
    ),
    Case(
        "PNG called JPEG",
        lambda: encode(frames=images(jpeg(compressed(".png")))),
        "image 'frames[0]' is declared as JPEG, but is a PNG file: declare it as PNG",
    ),
    Case(
        "PNG with alpha",
        lambda: encode(frames=images(png(compressed(".png", (SIZE, SIZE, 4))))),
        "image 'frames[0]' has an alpha channel or a transparent colour, expected 3 channels (RGB) of uint8: convert",
    ),
    Case(
        "PNG of 16 bits",
        lambda: encode(frames=images(png(compressed(".png", (SIZE, SIZE, 3), "uint16")))),
        "image 'frames[0]' has 16 bits in each channel, expected 3 channels (RGB) of uint8: convert it to RGB",
    ),
    Case(
        "JPEG of another size than declared",
        lambda: encode(frames=images(jpeg(compressed(".jpg"), height=64))),
        f"image 'frames[0]' is declared with height 64, its JPEG data has {SIZE}",
    ),
    Case(
        "image in shared memory",
        lambda: encode(frames=images(tensor_pb2.Image(encoding=RAW, shared=REGION))),
        "'frames[0]' refers to shared memory 'shm-1', which was not agreed on",
        UNIMPLEMENTED,
    ),
    Case(
        "tensor in shared memory",
        lambda: encode(
            frames=tensor_pb2.Frames(
                tensor=tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[1, SIZE, SIZE, 3], shared=REGION)
            )
        ),
        "'frames' refers to shared memory 'shm-1', which was not agreed on",
        UNIMPLEMENTED,
    ),
    Case("oversized message", lambda: encode(frames=frames((60, SIZE, SIZE, 3))), "message larger than max", EXHAUSTED),
    Case(
        "budget of zero",
        lambda: encode(options=request_pb2.RequestOptions(budget_ms=0)),
        "budget_ms is 0.0, expected a positive number of milliseconds",
    ),
    Case(
        "budget not a number",
        lambda: encode(options=request_pb2.RequestOptions(budget_ms=float("nan"))),
        "budget_ms is nan, expected a positive number of milliseconds",
    ),
    Case(
        "budget in nanoseconds",
        lambda: encode(options=request_pb2.RequestOptions(budget_ms=1e10)),
        "budget_ms is 10000000000.0, expected a positive number of milliseconds, at most 1000000000",
    ),
    Case(
        "control outside of control",
        lambda: encode(options=request_pb2.RequestOptions(criticality=request_pb2.CRITICALITY_CONTROL)),
        "criticality control is for sessions of Robot.Control",
    ),
    Case("no context", lambda: plan(context=None), "the context is empty, expected camera frames or latents"),
    Case("no goal", lambda: plan(goal=None), "the plan has no goal, expected its frames or their latents"),
    Case("empty goal", lambda: plan(goal=wire.Goal()), "the goal is empty, expected its frames or their latents"),
    Case("no state", lambda: plan(context=wire.Context(frames=frames())), "toy.plan: tensor 'state' is missing"),
    Case(
        "NaN in the state",
        lambda: plan(context=context(state=array((7,), value=float("nan")))),
        "toy.plan: tensor 'state' holds NaN or infinity, every value must be finite",
    ),
    Case(
        "goal of the wrong size",
        lambda: plan(goal=wire.Goal(frames=frames((1, 8, 8, 3)))),
        f"toy.plan: tensor 'goal_frames' has shape [1, 8, 8, 3], expected [1, {SIZE}, {SIZE}, 3]",
    ),
    Case(
        "goal weights that the model does not take",
        lambda: plan(goal=wire.Goal(frames=frames(), weights=array((1,)))),
        "toy.plan: unknown tensor 'goal_weights'",
    ),
    Case(
        "use of goals that the model does not take",
        lambda: plan(goal=wire.Goal(frames=frames(), use=wire.Goal.USE_PER_STEP)),
        "toy.plan: unknown option 'goal_use'",
    ),
    Case(
        "unknown option",
        lambda: option(request_pb2.OptionValue(integer=3), "num_sample"),
        "toy.plan: unknown option 'num_sample', did you mean 'num_samples'?",
    ),
    Case(
        "option given twice",
        lambda: _twice(),
        "option 'seed' is given twice: as a field of the request and in model_options",
    ),
    Case("option without a value", lambda: option(request_pb2.OptionValue()), "option 'spice' has no value"),
    Case(
        "option of the wrong kind",
        lambda: option(request_pb2.OptionValue(text="hot")),
        "toy.plan: option 'spice' is 'hot', expected float",
    ),
    Case(
        "field that the model does not declare",
        lambda: planner(temperature=1.0),
        "toy.plan: unknown option 'temperature'",
    ),
    Case(
        "tensor option that the model does not declare",
        lambda: planner(action_low=array((7,))),
        "toy.plan: unknown tensor 'action_low'",
    ),
    Case(
        "option out of range",
        lambda: planner(num_samples=100000),
        "toy.plan: option 'num_samples' is 100000, expected 2 to 256",
    ),
    Case("negative option", lambda: planner(num_samples=-1), "option 'num_samples' is -1, expected 2 to 256"),
    Case("option that is not finite", lambda: option(request_pb2.OptionValue(number=float("inf"))), "'spice' is inf"),
    Case(
        "choice that is not offered",
        lambda: planner(cost=wire.PlannerOptions.COST_COSINE),
        "toy.plan: option 'cost' is 'cosine', expected one of l1, l2",
    ),
    Case(
        "dimension pinned twice",
        lambda: planner(pinned=[wire.PinnedDimension(dimension=1)] * 2),
        "dimension 1 is pinned more than once",
    ),
    Case(
        "horizon over the limit of plans", lambda: planner(rollout_horizon=5), "'rollout_horizon' is 5, expected 1 to 4"
    ),
    Case(
        "horizon over the limit of rollouts",
        lambda: rollout(array((5, 7))),
        "toy.rollout: tensor 'actions' has H = 5, the limit of this model is 4",
    ),
    Case("no actions", lambda: rollout(rollout=wire.Rollout()), "the rollout has no actions, expected float32"),
    Case(
        "actions of the wrong width",
        lambda: rollout(array((2, 6))),
        "toy.rollout: tensor 'actions' has shape [1, 2, 6], expected [B=1, H=2, 7]",
    ),
    Case(
        "actions of the wrong dtype",
        lambda: rollout(array((2, 7), "int32")),
        "toy.rollout: tensor 'actions' has dtype int32, expected float32",
    ),
    Case(
        "NaN in the actions",
        lambda: rollout(array((2, 7), value=float("nan"))),
        "toy.rollout: tensor 'actions' holds NaN or infinity",
    ),
    Case(
        "tensor of the wrong length",
        lambda: rollout(tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[2, 7], data=b"123")),
        "tensor 'actions' has 3 bytes, expected 56 for float32 of shape [2, 7]",
    ),
    Case(
        "more context actions than frames",
        lambda: rollout(context=context(actions=array((1, 7)))),
        "tensor 'context_actions' has shape [1, 7], expected one action between every two of 1 frames: [0, A]",
    ),
    Case(
        "extrinsics that the checkpoint does not use",
        lambda: rollout(context=context(extrinsics=array((1, 6)))),
        "toy.rollout: unknown tensor 'extrinsics'",
    ),
    Case(
        "output that the model does not offer",
        lambda: rollout(rollout=wire.Rollout(actions=array((2, 7)), output=wire.Rollout.OUTPUT_LAST_LATENT)),
        "toy.rollout: unknown option 'output'",
    ),
]


def _twice() -> wire.PlanRequest:
    request = planner(seed=1)
    request.planner.model_options["seed"].integer = 2
    return request


def call(world_model: Any, request: Any) -> Any:
    if isinstance(request, wire.EncodeRequest):
        return world_model.Encode(request)
    if isinstance(request, wire.PlanRequest):
        return list(world_model.Plan(request))
    return list(world_model.Rollout(request))


@pytest.fixture(scope="module")
def shared_runtime() -> Any:
    from toy_runtime import toy_runtime

    with toy_runtime() as running:
        yield running


@pytest.fixture(scope="module")
def shared_stub(shared_runtime: ToyRuntime) -> Any:
    from mstar_rt.protos.world_model_pb2_grpc import WorldModelStub

    with grpc.insecure_channel(shared_runtime.address, [("grpc.max_send_message_length", -1)]) as channel:
        yield WorldModelStub(channel)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused_and_the_next_request_is_served(case: Case, shared_stub: Any, shared_runtime: ToyRuntime) -> None:
    before = len(shared_runtime.seen(Submit))
    with pytest.raises(grpc.RpcError) as failure:
        call(shared_stub, case.request())
    assert failure.value.code() == case.code
    assert case.sentence in failure.value.details()
    assert "\n" not in failure.value.details()
    assert len(shared_runtime.seen(Submit)) == before
    assert shared_stub.Encode(encode()).latents.shape[0] == 1
    shared_runtime.wait_until_nothing_is_held()


@pytest.mark.parametrize("method", ["WorldModel/Encode", "WorldModel/Plan", "WorldModel/Session", "Runtime/Stats"])
def test_bytes_that_are_no_message(method: str, shared_runtime: ToyRuntime, caplog: pytest.LogCaptureFixture) -> None:
    garbage = b"\xff\xff\xff"
    with grpc.insecure_channel(shared_runtime.address) as channel, caplog.at_level("INFO"):
        if method.endswith("Session"):
            call = channel.stream_stream(f"/mstar.v1.{method}")(iter([garbage]))
        else:
            call = channel.unary_stream(f"/mstar.v1.{method}")(garbage)
        with pytest.raises(grpc.RpcError) as failure:
            list(call)
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "the bytes sent are not a message of this method" in failure.value.details()
    ids = [value for key, value in failure.value.trailing_metadata() if key == "mstar-request-id"]
    (record,) = [record for record in caplog.records if record.levelname != "DEBUG"]
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert ids[0] in record.message


@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_compressed_images_arrive_as_rgb(extension: str, shared_stub: Any, shared_runtime: ToyRuntime) -> None:
    """A blue image whose channels were swapped would be a red one."""
    blue = np.zeros((SIZE, SIZE, 3), np.uint8)
    blue[..., 2] = 240
    data = cv2.imencode(extension, cv2.cvtColor(blue, cv2.COLOR_RGB2BGR))[1].tobytes()
    encoding = JPEG if extension == ".jpg" else PNG
    seen: list[np.ndarray] = []
    encode_script = shared_runtime.scripts["encode"]

    async def look(job: Any) -> None:
        seen.append(job.inputs["frames"])
        await encode_script(job)

    shared_runtime.script("encode", look)
    shared_stub.Encode(encode(frames=images(tensor_pb2.Image(encoding=encoding, data=data), raw())))
    shared_runtime.script("encode", encode_script)
    (arrived,) = seen
    assert arrived.shape == (2, SIZE, SIZE, 3)
    assert np.abs(arrived[0].astype(int) - blue).max() <= (6 if extension == ".jpg" else 0)
    assert (arrived[1] == 0).all()


def test_a_header_that_promises_too_many_pixels_is_refused_before_decoding() -> None:
    from mstar_rt.errors import InvalidArgument
    from mstar_rt.server.images import decode_image

    data = bytearray(compressed(".png"))
    data[16:24] = (60000).to_bytes(4, "big") * 2
    with pytest.raises(InvalidArgument, match="is 60000 x 60000, at most 16777216 pixels are decoded"):
        decode_image(png(bytes(data)), "bomb")
