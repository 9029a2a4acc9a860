"""What robots see in this benchmark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.noop.policy import ACTION, CAMERAS, HORIZON, STATE
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.protos.arrays import tensor_from_array
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.instruction_tasks import task_named
from sim_bridge.tabletop_expert import Expert

NUM_SCENES = 8


@dataclass(frozen=True)
class Scene:
    """An observation: images by camera, the state, and what to do."""

    images: dict[str, np.ndarray]
    state: np.ndarray
    instruction: str | None = None


def noise_scenes() -> list[Scene]:
    """For the policy that does nothing: other pixels in each."""
    generator = np.random.default_rng(0)
    return [
        Scene(
            {each.name: generator.integers(0, 256, (each.height, each.width, 3), np.uint8) for each in CAMERAS},
            generator.normal(size=STATE).astype(np.float32),
        )
        for _ in range(NUM_SCENES)
    ]


def tabletop_scenes(task: str = "push_left", seed: int = 30_000) -> list[Scene]:
    """Along an episode of the scripted expert."""
    env, expert = InstructionEnv(task), Expert(task_named(task))
    seen, info = env.reset(seed=seed)
    scenes = []
    for _ in range(NUM_SCENES):
        scenes.append(Scene(dict(seen["images"]), np.asarray(seen["state"], np.float32), env.instruction))
        for _ in range(3):
            seen, _, _, _, info = env.step(expert(info["effector_xy"], info["puck_xy"]))
    env.close()
    return scenes


def request_bytes(scene: Scene) -> bytes:
    """An observation as the client sends it without shared memory."""
    images = {
        name: tensor_pb2.Image(
            encoding=tensor_pb2.Image.ENCODING_RAW, data=image.tobytes(), height=image.shape[0], width=image.shape[1],
            channels=3,
        )
        for name, image in scene.images.items()
    }  # fmt: skip
    observation = wire.Observation(
        seq=1000, images=images, state=tensor_from_array(scene.state), executed_index=0, client_time_ns=1 << 50
    )
    return bytes(wire.ControlRequest(observation=observation).SerializeToString())


def answer_bytes() -> int:
    """The size of a chunk with its timing."""
    node = request_pb2.NodeTiming(name="act", num_steps=1, queue_us=100.0, run_us=10.0)
    timing = request_pb2.Timing(
        decode_us=100.0, queue_us=100.0, nodes=[node], runtime_us=500.0, encode_us=50.0, total_us=700.0,
        transport_us=390.0, run_us=10.0,
    )  # fmt: skip
    chunk = wire.ActionChunk(
        answers_seq=1000, actions=tensor_from_array(np.zeros((HORIZON, ACTION), np.float32)), timing=timing,
        client_time_ns=1 << 50, request_id="r-0123456789abcdef",
    )  # fmt: skip
    return int(wire.ControlResponse(chunk=chunk).ByteSize())
