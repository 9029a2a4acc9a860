"""Ten thousand messages for each decoder of the wire API: each is taken or refused in a sentence, and none does harm."""

from __future__ import annotations

import asyncio
import mmap
import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
from control_stream import OPEN, POLICY, observation, opened, policy_runtime, schema
from fuzzing import NUM_MESSAGES, fuzzed, mutated, outcomes
from toy_policy import SIZE, toy_policy
from toy_runtime import PATCHES, WIDTH, toy_model
from toy_runtime import SIZE as FRAME_SIZE

from mstar_rt.clock import ManualClock
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.protos import control_pb2, request_pb2, task_pb2, tensor_pb2, world_model_pb2
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array
from mstar_rt.server import inputs
from mstar_rt.server.control.decoding import decode, vector
from mstar_rt.server.control.region import SharedRegion, map_region
from mstar_rt.server.control.settings import settings_from
from mstar_rt.server.images import MAX_PIXELS, decode_image, takes_long
from mstar_rt.server.metrics_http import MetricsServer
from mstar_rt.server.task_runner import TaskRunner
from mstar_rt.server.tasks import _task_input

RAW, JPEG, PNG = tensor_pb2.Image.ENCODING_RAW, tensor_pb2.Image.ENCODING_JPEG, tensor_pb2.Image.ENCODING_PNG
REGION_BYTES = 4096


def runner_of(model: ServedModel) -> TaskRunner:
    dispatcher: Any = SimpleNamespace(meters=SimpleNamespace(answered=lambda *_: None))
    return TaskRunner({model.name: model}, dispatcher, ManualClock(10**9))


def reaches_far(found: Counter[str], taken: float = 0.01) -> None:
    """Enough messages are good enough to be looked at closely, and enough are refused."""
    assert sum(found.values()) == NUM_MESSAGES
    assert found["taken"] > taken * NUM_MESSAGES, found
    assert found["INVALID_ARGUMENT"] > 0.05 * NUM_MESSAGES, found


def small_region() -> SharedRegion:
    return SharedRegion("shm", mmap.mmap(-1, REGION_BYTES))


# ---- messages of streams and calls


async def test_control_messages() -> None:
    opening = control_pb2.OpenControl(
        **OPEN, schema=schema(), replan_every=2, seed=3, num_denoise_steps=4,
        chunking=control_pb2.RealTimeChunking(mode=control_pb2.RealTimeChunking.MODE_GUIDED),
        shared_memory=control_pb2.SharedMemoryOffer(region="shm", num_bytes=REGION_BYTES, pid=1, fd=1, token=bytes(16)),
        model_options={"hold_s": request_pb2.OptionValue(number=0.5)},
    )  # fmt: skip
    seen = observation(5, 7, noise=tensor_from_array(np.zeros((8, 2), np.float32)), budget_ms=50.0)
    like = [
        control_pb2.ControlRequest(open=opening),
        control_pb2.ControlRequest(observation=seen),
        control_pb2.ControlRequest(observation=observation(6, 7)),
        control_pb2.ControlRequest(reset=control_pb2.ResetEpisode(epoch=4, instruction="pull", seed=5)),
        control_pb2.ControlRequest(set_instruction=control_pb2.SetInstruction(instruction="pull")),
    ]
    runner, region = runner_of(toy_policy()), small_region()

    async def take(data: bytes) -> None:
        message = control_pb2.ControlRequest.FromString(data)
        if message.HasField("open"):
            settings_from(runner, message.open)
            map_region(message.open.shared_memory, "ipv4:127.0.0.1:5")
        elif message.HasField("observation"):
            found = await decode(message.observation, POLICY.cameras, True, region)
            assert found.images["top"].shape == (SIZE, SIZE, 3)
            if message.observation.HasField("noise"):
                vector(message.observation.noise, "noise")

    found = await outcomes(fuzzed(like, seed=1), take)
    reaches_far(found)
    assert found["FAILED_PRECONDITION"] > 0


async def test_task_messages() -> None:
    state = tensor_from_array(np.zeros(3, np.float32))
    picture = tensor_from_array(np.zeros((SIZE, SIZE, 3), np.uint8))
    options = {
        "instruction": request_pb2.OptionValue(text="push"),
        "normalization": request_pb2.OptionValue(text="lab"),
    }
    like = [
        task_pb2.TaskRequest(
            message_id=1, model="toy", task="act", tensors={"state": state, "image_top": picture},
            model_options=options | {"seed": request_pb2.OptionValue(integer=number)},
            options=request_pb2.RequestOptions(budget_ms=20.0),
        )
        for number in range(2)
    ]  # fmt: skip
    runner = runner_of(toy_policy())

    async def take(data: bytes) -> None:
        request = task_pb2.TaskRequest.FromString(data)
        model = runner.model(request.model)
        runner.serving_options(request.options, 0)
        given = _task_input(request)
        model.task(given.task)
        model.check_request(given.task, given.tensors, given.params)

    reaches_far(await outcomes(fuzzed(like, seed=2), take))


async def test_world_model_messages() -> None:
    latents, state = (tensor_from_array(np.zeros(shape, np.float32)) for shape in ((1, PATCHES, WIDTH), 7))
    frame = tensor_from_array(np.zeros((1, FRAME_SIZE, FRAME_SIZE, 3), np.uint8))
    context = world_model_pb2.Context(latents=latents, state=state)
    goal = world_model_pb2.Goal(frames=tensor_pb2.Frames(tensor=frame))
    planner = world_model_pb2.PlannerOptions(num_samples=8, cost=world_model_pb2.PlannerOptions.COST_L1)
    like = [
        world_model_pb2.PlanRequest(model="toy", context=context, goal=goal, planner=planner),
        world_model_pb2.PlanRequest(model="toy", context=context, goal=world_model_pb2.Goal(latents=latents)),
    ]
    model = toy_model()

    async def take(data: bytes) -> None:
        request = world_model_pb2.PlanRequest.FromString(data)
        given = inputs.planner_input(request.planner)
        given.tensors |= await inputs.context_tensors(request.context)
        given.tensors |= await inputs.goal_tensors(request.goal)
        given.params |= inputs.goal_params(request.goal)
        model.check_request("plan", given.tensors, given.params)

    reaches_far(await outcomes(fuzzed(like, seed=3), take))


# ---- what they are made of


async def test_tensors() -> None:
    dtypes = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
    like = [tensor_from_array(np.zeros((2, 3), dtype)) for dtype in dtypes]
    like.append(tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_BFLOAT16, shape=[2, 3], data=bytes(12)))

    async def take(data: bytes) -> None:
        tensor = tensor_pb2.Tensor.FromString(data)
        array = array_from_tensor(tensor, "tensor")
        assert array.shape == tuple(tensor.shape)
        assert array.nbytes <= 2 * len(tensor.data)

    reaches_far(await outcomes(fuzzed(like, seed=4), take))


async def test_images(capfd: Any) -> None:
    """JPEG and PNG files are damaged too, with their messages left alone: libraries in C read them."""
    noise = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3)).astype(np.uint8)
    files = {kind: cv2.imencode(ending, noise)[1].tobytes() for kind, ending in ((JPEG, ".jpg"), (PNG, ".png"))}
    like = [tensor_pb2.Image(encoding=kind, data=data) for kind, data in files.items()]
    like.append(tensor_pb2.Image(encoding=RAW, data=noise.tobytes(), height=SIZE, width=SIZE, channels=3))
    rng, slowest_s = random.Random(5), [0.0]

    async def take(data: bytes) -> None:
        image = tensor_pb2.Image.FromString(data)
        if image.encoding in files and rng.random() < 0.7:
            image.data = mutated(files[image.encoding], rng, list(files.values()))
        started_s, on_loop = time.thread_time(), not takes_long([image])
        try:
            pixels = decode_image(image, "image")
            assert pixels.dtype == np.uint8
            assert pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS
        finally:
            if on_loop:
                slowest_s[0] = max(slowest_s[0], time.thread_time() - started_s)

    reaches_far(await outcomes(fuzzed(like, seed=5), take))
    assert slowest_s[0] < 0.1, "the event loop waits for it"
    capfd.readouterr()  # what libjpeg and libpng have to say


def test_files_that_are_long_to_read_are_refused_before_anything_reads_them() -> None:
    """A chunk of 1 GB, for which OpenCV would first take the memory, and lengths that a loop would follow for ever."""
    png = cv2.imencode(".png", np.zeros((SIZE, SIZE, 3), np.uint8))[1].tobytes()
    large = png[:33] + (1 << 30).to_bytes(4, "big") + png[37:]
    many = png[:33] + (bytes(4) + b"tEXt" + bytes(4)) * 1_000_000 + png[-12:]
    fill = b"\xff\xd8" + b"\xff" * 10_000_000 + b"\xd9"
    for kind, data in ((PNG, large), (PNG, many), (JPEG, fill)):
        started_s = time.thread_time()
        with pytest.raises(InvalidArgument, match="is not a complete"):
            decode_image(tensor_pb2.Image(encoding=kind, data=data), "image")
        assert time.thread_time() - started_s < 0.1


async def test_references_to_shared_memory() -> None:
    memory = mmap.mmap(-1, REGION_BYTES)
    memory[56:64] = (9).to_bytes(8, "little")
    region = SharedRegion("shm", memory)
    like = [
        tensor_pb2.SharedMemoryRef(region="shm", offset=64, num_bytes=number, generation=9) for number in (1, 12, 768)
    ]

    async def take(data: bytes) -> None:
        ref = tensor_pb2.SharedMemoryRef.FromString(data)
        view = region.view(ref, "image")
        assert len(view) == ref.num_bytes <= REGION_BYTES
        region.check(ref, "image")

    found = await outcomes(fuzzed(like, seed=6), take)
    reaches_far(found)
    assert found["FAILED_PRECONDITION"] > 0


async def test_heads_of_http_requests() -> None:
    like = [
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer token\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    rng = random.Random(7)

    async def collect() -> Any:
        raise InvalidArgument("collected")

    server, found = MetricsServer(collect), Counter[int]()
    for _ in range(NUM_MESSAGES):
        reader = asyncio.StreamReader(limit=16 << 10)
        reader.feed_data(mutated(rng.choice(like), rng, like))
        reader.feed_eof()
        server.text = never  # type: ignore[method-assign]
        found[(await server._answer(reader))[0].value] += 1
    assert set(found) == {200, 400, 404, 405}


async def never() -> bytes:
    return b""


# ---- through the wire


def test_a_server_that_was_sent_all_sorts_of_things_serves() -> None:
    """And holds nothing: `policy_runtime` sees to that."""
    like = [
        control_pb2.ControlRequest(open=control_pb2.OpenControl(**OPEN, schema=schema())),
        control_pb2.ControlRequest(observation=observation(1, 7)),
        control_pb2.ControlRequest(reset=control_pb2.ResetEpisode(epoch=4)),
    ]
    good = like[0].SerializeToString()
    found: Counter[str] = Counter()
    with policy_runtime() as runtime, grpc.insecure_channel(runtime.address) as channel:
        stream: Any = channel.stream_stream("/mstar.v1.Robot/Control")
        messages = list(fuzzed(like, seed=8, count=180))
        for begin in range(0, len(messages), 3):
            call = stream(iter([good, *messages[begin : begin + 3]]), timeout=20)
            try:
                found["answers"] += len(list(call))
            except grpc.RpcError as refused:
                found[refused.code().name] += 1
        for path in ("/mstar.v1.Tasks/Run", "/mstar.v1.WorldModel/Encode", "/mstar.v1.Runtime/DescribeModel"):
            run: Any = channel.unary_unary(path)
            for data in messages[:20]:
                try:
                    run(data, timeout=20)
                except grpc.RpcError as refused:
                    found[refused.code().name] += 1
        robot = opened(channel)
        robot.observe(1)
        robot.hear("chunk")
        robot.close()
    assert {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED"}.isdisjoint(found), found
    assert found["INVALID_ARGUMENT"] > 50
