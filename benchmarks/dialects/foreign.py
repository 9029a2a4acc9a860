"""One client of each protocol, asking for one chunk at a time; all of them with the same pictures and numbers."""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import msgspec
import numpy as np
import zmq
import zmq.asyncio

from benchmarks.control.scene import Scene
from benchmarks.dialects import CONTROL_HZ, JOINTS, NOOP
from benchmarks.dialects.lerobot_classes import RemotePolicyConfig, TimedObservation, lerobot_classes
from benchmarks.dialects.openpi import OpenpiClient
from benchmarks.noop.policy import ACTION, CAMERAS, HORIZON
from mstar_rt.client import AsyncClient
from mstar_rt.protos import lerobot_pb2 as lerobot

RoundTrip = Callable[[], Awaitable[None]]
TIMEOUT_S = 60.0
SHAPE = (HORIZON, ACTION)


@contextlib.asynccontextmanager
async def native(client: AsyncClient, scenes: Sequence[Scene], shared_memory: bool) -> AsyncIterator[RoundTrip]:
    turning = itertools.cycle(scenes)
    async with client.control(NOOP, control_hz=CONTROL_HZ, budget_ms=6e4, shared_memory=shared_memory) as session:

        async def ask() -> None:
            scene = next(turning)
            seq = await session.send(scene.images, scene.state)
            chunk = await session.wait_for_chunk(seq, TIMEOUT_S)
            assert chunk.actions.shape == SHAPE

        yield ask


@contextlib.asynccontextmanager
async def openpi(port: int, scenes: Sequence[Scene]) -> AsyncIterator[RoundTrip]:
    turning = itertools.cycle(openpi_message(scene) for scene in scenes)
    async with OpenpiClient(port) as client:

        async def ask() -> None:
            answer = await client.infer(next(turning))
            assert answer["actions"].shape == SHAPE

        yield ask


def openpi_message(scene: Scene) -> dict[str, Any]:
    told = {} if scene.instruction is None else {"prompt": scene.instruction}
    images = {f"observation/{name}": image for name, image in scene.images.items()}
    return {**images, "observation/state": scene.state, **told}


@contextlib.asynccontextmanager
async def gr00t(port: int, scenes: Sequence[Scene]) -> AsyncIterator[RoundTrip]:
    turning = itertools.cycle(
        {
            "video": {name: image[None, None] for name, image in scene.images.items()},
            "state": {"arm": scene.state[None, None]},
        }
        for scene in scenes
    )
    with zmq.asyncio.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")

        async def ask() -> None:
            request = {"endpoint": "get_action", "data": {"observation": next(turning), "options": None}}
            await socket.send(msgspec.msgpack.encode(request, enc_hook=_npy))
            answer = msgspec.msgpack.decode(await socket.recv())
            assert isinstance(answer, list), f"the server has failed: {answer}"
            actions = np.load(io.BytesIO(answer[0]["arm"]["as_npy"]), allow_pickle=False)
            assert actions.shape == (1, *SHAPE)

        yield ask


def _npy(value: Any) -> Any:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


# ---- LeRobot


@contextlib.asynccontextmanager
async def lerobot_robot(address: str, scenes: Sequence[Scene]) -> AsyncIterator[RoundTrip]:
    """Its observation, then its actions, one after the other: RobotClient has a thread for each."""
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (len(JOINTS),), "names": list(JOINTS)}
    }
    for camera in CAMERAS:
        shape = (camera.height, camera.width, 3)
        names = ["height", "width", "channels"]
        features[f"observation.images.{camera.name}"] = {"dtype": "image", "shape": shape, "names": names}
    turning, timesteps = itertools.cycle(scenes), itertools.count()
    with lerobot_classes():
        async with grpc.aio.insecure_channel(address) as channel:
            call = _LerobotCalls(channel)
            await call.ready(lerobot.Empty())
            setup = RemotePolicyConfig("noop_policy", NOOP, features, HORIZON)
            await call.setup(lerobot.PolicySetup(data=pickle.dumps(setup)))

            async def ask() -> None:
                scene = next(turning)
                joints = dict(zip(JOINTS, scene.state.tolist(), strict=True))
                observation = {**joints, **scene.images, "task": ""}
                data = pickle.dumps(TimedObservation(0.0, next(timesteps), observation, must_go=True))
                await call.observe(iter([lerobot.Observation(transfer_state=lerobot.TRANSFER_END, data=data)]))
                answer = b""
                while not answer:
                    answer = (await call.actions(lerobot.Empty())).data
                assert len(pickle.loads(answer)) == HORIZON  # noqa: S301 (our own server's)

            try:
                yield ask
            finally:
                await call.ready(lerobot.Empty())


class _LerobotCalls:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        service = "/transport.AsyncInference/"

        def write(message: Any) -> bytes:
            return bytes(message.SerializeToString())

        self.ready: Any = channel.unary_unary(service + "Ready", write, lerobot.Empty.FromString)
        self.setup: Any = channel.unary_unary(service + "SendPolicyInstructions", write, lerobot.Empty.FromString)
        self.observe: Any = channel.stream_unary(service + "SendObservations", write, lerobot.Empty.FromString)
        self.actions: Any = channel.unary_unary(service + "GetActions", write, lerobot.Actions.FromString)
