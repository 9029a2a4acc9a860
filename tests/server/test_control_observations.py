"""Observations that are wrong fail alone, with a sentence and nothing of the server's inside; a robot that does not read
is given up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
from control_stream import Held, Kind, Robot, actions_of, image, opened, policy_runtime, schema
from toy_policy import POLICY, SIZE
from toy_runtime import Job, ToyRuntime

from mstar_rt.errors import ResourceExhausted
from mstar_rt.message import Submit
from mstar_rt.model import VectorSpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import tensor_from_array
from mstar_rt.server.control import pilot
from mstar_rt.server.control.outbox import Outbox

STATE = tensor_from_array(np.zeros(3, np.float32))


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


def compressed(extension: str, value: int = 100, size: int = SIZE, noise: bool = False) -> tensor_pb2.Image:
    pixels = np.full((size, size, 3), value, np.uint8)
    if noise:
        pixels = np.random.default_rng(1).integers(0, 256, pixels.shape, np.uint8)
    data = cv2.imencode(extension, pixels)[1].tobytes()
    encoding = tensor_pb2.Image.ENCODING_JPEG if extension == ".jpg" else tensor_pb2.Image.ENCODING_PNG
    return tensor_pb2.Image(encoding=encoding, data=data)


@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_compressed_images_are_decoded(channel: grpc.Channel, extension: str) -> None:
    robot = opened(channel)
    robot.observe(1, images={"top": compressed(extension)}, state=STATE)
    assert actions_of(robot.hear("chunk"))[0, 0] == pytest.approx(1.0)
    robot.close()


def test_large_images_are_decoded_beside_the_event_loop(channel: grpc.Channel) -> None:
    size = 120
    cameras = (replace(POLICY.cameras[0], height=size, width=size), POLICY.cameras[1])
    with policy_runtime(replace(POLICY, cameras=cameras)) as runtime, grpc.insecure_channel(runtime.address) as large:
        given: list[np.ndarray] = []

        async def keep(job: Job) -> None:
            given.append(job.inputs["image_top"])
            job.emit("actions", np.zeros((8, 2), np.float32))
            job.finish()

        runtime.script("act", keep)
        robot = opened(large, schema=schema(cameras=[wire.CameraSchema(name="top", height=size, width=size)]))
        robot.observe(1, images={"top": compressed(".png", size=size, noise=True)}, masked_cameras=[])
        robot.hear("chunk")
        robot.close()
    expected = np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)
    np.testing.assert_array_equal(given[0], expected[..., ::-1])


@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_a_small_file_of_very_many_pixels_is_refused_before_they_are_made(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    """5 kB would keep the event loop, and all robots, waiting for 20 ms."""
    bomb = compressed(extension, size=1024)
    assert len(bomb.data) < 20_000
    robot = opened(channel)
    with monkeypatch.context() as patched:
        patched.setattr(cv2, "imdecode", lambda *_: pytest.fail("it is decoded"))
        robot.observe(1, images={"top": bomb}, state=STATE)
        detail = robot.hear_event(Kind.KIND_FAILED, 1).detail
    assert detail.message.startswith("the image of camera 'top' is 1024 x 1024, expected 16 x 16 (height x width)")
    robot.close()


def test_many_pixels_in_few_bytes_are_made_beside_the_event_loop(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, made_by = 640, []
    decoded = cv2.imdecode

    def noted(*arguments: Any) -> Any:
        made_by.append(threading.current_thread().name)
        return decoded(*arguments)

    cameras = (replace(POLICY.cameras[0], height=size, width=size), POLICY.cameras[1])
    with policy_runtime(replace(POLICY, cameras=cameras)) as runtime, grpc.insecure_channel(runtime.address) as large:
        robot = opened(large, schema=schema(cameras=[wire.CameraSchema(name="top", height=size, width=size)]))
        with monkeypatch.context() as patched:
            patched.setattr(cv2, "imdecode", noted)
            robot.observe(1, images={"top": compressed(".png", size=size)}, masked_cameras=[])
            robot.hear("chunk")
        robot.close()
    assert [name.split("_")[0] for name in made_by] == ["asyncio"]


def test_every_camera_changes_the_answer(channel: grpc.Channel) -> None:
    robot = opened(channel)
    robot.observe(1, images={"top": image(5), "wrist": image()}, masked_cameras=[])
    assert actions_of(robot.hear("chunk"))[0, 0] == pytest.approx(1000.05)
    robot.close()


def test_a_camera_that_the_robot_does_not_have_is_masked_throughout(channel: grpc.Channel) -> None:
    robot = opened(channel, schema=schema(cameras=[wire.CameraSchema(name="top", height=SIZE, width=SIZE)]))
    robot.observe(1, masked_cameras=[])
    robot.hear("chunk")
    robot.observe(2)
    assert "the session has no camera 'wrist'" in robot.hear_event(Kind.KIND_FAILED, 2).detail.message
    robot.close()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"images": {"top": image(), "side": image()}}, "the session has no camera 'side', known: top, wrist"),
        ({"images": {"top": image(), "wrist": image()}}, "camera 'wrist' is masked and has an image"),
        ({"masked_cameras": ["top", "wrist"], "images": {}}, "camera 'top' is masked, but the policy needs it"),
        ({"images": {}}, "camera 'top' is missing: send its image"),
        ({"masked_cameras": []}, "camera 'wrist' is missing: send its image, or name it in masked_cameras"),
        ({"images": {"top": image(size=8)}}, "the image of camera 'top' is 8 x 8, expected 16 x 16"),
        ({"images": {"top": tensor_pb2.Image()}}, "image 'top' is empty"),
        ({"images": {"top": tensor_pb2.Image(data=b"x")}}, "image 'top' has no known encoding"),
        ({"state": None}, "the observation has no state, which the policy needs"),
        ({"state": tensor_from_array(np.zeros(4, np.float32))}, "tensor 'state' has shape [4], expected [3]"),
        ({"state": tensor_from_array(np.zeros(3))}, "tensor 'state' has dtype float64, expected float32"),
        ({"state": tensor_from_array(np.full(3, np.nan, np.float32))}, "tensor 'state' holds NaN"),
        ({"noise": tensor_from_array(np.zeros((1, 2), np.float32))}, "tensor 'noise' has shape [1, 2]"),
        ({"images": {"top": {"shared": {"region": "r"}}}}, "'top' refers to shared memory 'r'"),
    ],
)
def test_an_observation_that_does_not_fit_fails_alone(
    channel: grpc.Channel, fields: dict[str, Any], sentence: str
) -> None:
    robot = opened(channel)
    robot.observe(1, **fields)
    assert sentence in robot.hear_event(Kind.KIND_FAILED, 1).detail.message
    robot.observe(2)
    robot.hear("chunk")
    robot.close()


def test_a_robot_without_a_state_sends_none() -> None:
    policy = replace(POLICY, state=None)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:

        async def zeros(job: Job) -> None:
            job.emit("actions", np.zeros((8, 2), np.float32))
            job.finish()

        runtime.script("act", zeros)
        robot = opened(channel, schema=schema(state=None))
        robot.observe(1, state=None)
        robot.hear("chunk")
        robot.observe(2)
        assert "opened without one" in robot.hear_event(Kind.KIND_FAILED, 2).detail.message
        robot.close()


def test_a_fault_of_the_server_tells_nothing_of_it(channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("/secret/path/of/the/server.py, line 3")

    robot = opened(channel)
    with monkeypatch.context() as patched:
        patched.setattr(pilot, "decode", broken)
        robot.observe(1)
        detail = robot.hear_event(Kind.KIND_FAILED, 1).detail
    assert detail.code == "INTERNAL"
    assert detail.message == f"the server failed on this request; its log has the cause under {detail.request_id}"
    robot.observe(2)
    robot.hear("chunk")
    robot.close()


def test_a_wrong_observation_is_not_in_the_history() -> None:
    policy = replace(POLICY, num_observations=2, chunking=(), max_prefix_delay=None)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:
        states: list[list[float]] = []

        def keep(job: Job) -> None:
            states.append(job.inputs["state"][:, 0].tolist())
            job.emit("actions", np.zeros((8, 2), np.float32))
            job.finish()

        robot, held = opened(channel), Held(runtime)
        robot.observe(1, 1)
        held.wait()
        robot.observe(2, 2, images={})
        robot.hear_event(Kind.KIND_FAILED, 2)
        held.end(keep)
        robot.hear("chunk")
        robot.observe(3, 3)
        held.wait(2)
        held.end(keep)
        robot.hear("chunk")
        robot.close()
    assert states == [[1.0, 1.0], [1.0, 3.0]]


def test_a_robot_that_sends_and_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 2 MB fill what the transport holds; then nothing new is computed, and what is dropped is told."""
    policy = replace(POLICY, action=VectorSpec(1024), action_horizon=512)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as channel:

        async def zeros(job: Job) -> None:
            job.emit("actions", np.zeros((512, 1024), np.float32))
            job.finish()

        runtime.script("act", zeros)
        robot = Robot(channel, epoch=0, schema=schema(action=wire.VectorSchema(size=1024)))
        given_up, put = threading.Event(), Outbox.put

        def watched(outbox: Outbox, message: wire.ControlResponse) -> None:
            try:
                put(outbox, message)
            except ResourceExhausted:
                given_up.set()
                raise

        monkeypatch.setattr(Outbox, "put", watched)
        seqs = itertools.count()
        while not given_up.wait(0.02) and robot.call.is_active():
            for seq in itertools.islice(seqs, 20):
                robot.observe(seq)
        failure = robot.ends_with()
        assert len(runtime.seen(Submit)) < 100
    assert failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failure.details() == "256 messages wait for this robot, which sends but does not read: read the stream"
