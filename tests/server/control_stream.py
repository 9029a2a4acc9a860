"""One robot's stream as a test says and hears it, and the scripted policy behind it."""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from toy_policy import POLICY, SIZE, chunk_of, toy_policy
from toy_runtime import Job, ToyRuntime, toy_runtime

from mstar_rt.message import Submit
from mstar_rt.model import PolicySpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import control_pb2_grpc, tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array

Kind = wire.ControlEvent.Kind
OPEN: dict[str, Any] = {"model": "toy", "instruction": "push", "control_hz": 20.0, "budget_ms": 60_000.0}
"""With more time than any machine needs."""
TIMEOUT_S = 20


def schema(**changes: Any) -> wire.RobotSchema:
    """A robot with both cameras that fits the toy policy."""
    cameras = [wire.CameraSchema(name=name, height=SIZE, width=SIZE) for name in ("top", "wrist")]
    fields: dict[str, Any] = {
        "cameras": cameras, "state": wire.VectorSchema(size=3), "action": wire.VectorSchema(size=2), "normalization": "lab",
    }  # fmt: skip
    return wire.RobotSchema(**(fields | changes))


def image(value: int = 0, size: int = SIZE) -> tensor_pb2.Image:
    return tensor_pb2.Image(
        encoding=tensor_pb2.Image.ENCODING_RAW,
        data=bytes([value]) * (size * size * 3),
        height=size,
        width=size,
        channels=3,
    )


def observation(seq: int, value: int = 0, **fields: Any) -> wire.Observation:
    """Of camera "top" alone, with a state of `value`."""
    fields = {
        "images": {"top": image(value)}, "masked_cameras": ["wrist"],
        "state": tensor_from_array(np.full(3, value, np.float32)), **fields,
    }  # fmt: skip
    return wire.Observation(seq=seq, **fields)


def actions_of(chunk: wire.ActionChunk) -> np.ndarray:
    return array_from_tensor(chunk.actions, "actions")


async def act(job: Job) -> None:
    answer(job)


def answer(job: Job, actions: np.ndarray | None = None) -> None:
    delay = int(job.submit.params.get("delay", 0))  # type: ignore[arg-type]
    job.emit("actions", chunk_of(job.inputs, delay) if actions is None else actions)
    params = job.submit.params
    num_steps = params.get("min_denoise_steps", params["num_denoise_steps"])
    job.emit("num_denoise_steps", np.array(num_steps, np.int64))
    job.finish(flags=("toy",))


@contextmanager
def policy_runtime(policy: PolicySpec = POLICY, **options: Any) -> Iterator[ToyRuntime]:
    with toy_runtime(model=toy_policy(policy), scripts={"act": act, "act_anytime": act}, **options) as runtime:
        yield runtime


class Robot:
    """The client's end: `say` sends a message, `hear` takes the next answer of the server."""

    def __init__(self, channel: grpc.Channel, **opening: Any) -> None:
        self._outgoing: queue.SimpleQueue[wire.ControlRequest | None] = queue.SimpleQueue()
        stub = control_pb2_grpc.RobotStub(channel)
        self.call = stub.Control(iter(self._outgoing.get, None), timeout=TIMEOUT_S)
        if opening:
            self.say(open=wire.OpenControl(**{**OPEN, "schema": schema(), **opening}))

    def say(self, **message: Any) -> None:
        self._outgoing.put(wire.ControlRequest(**message))

    def observe(self, seq: int, value: int = 0, **fields: Any) -> None:
        self.say(observation=observation(seq, value, **fields))

    def hear(self, kind: str | None = None) -> Any:
        """The next message, which is of `kind` if that is given."""
        response = next(self.call)
        heard = response.WhichOneof("message")
        assert kind in (None, heard), response
        return getattr(response, heard)

    def hear_event(self, kind: Kind, seq: int | None = None) -> wire.ControlEvent:
        event: wire.ControlEvent = self.hear("event")
        assert event.kind == kind, event
        assert (event.seq if event.HasField("seq") else None) == seq, event
        return event

    def stop_sending(self) -> None:
        self._outgoing.put(None)

    def close(self) -> None:
        self.say(close=wire.CloseControl())
        self.hear("closed")

    def ends_with(self) -> grpc.RpcError:
        """Whatever it says before."""
        with pytest.raises(grpc.RpcError) as failure:
            list(self.call)
        return failure.value


def opened(channel: grpc.Channel, **opening: Any) -> Robot:
    robot = Robot(channel, **({"epoch": 0} | opening))
    robot.hear("opened")
    return robot


class Held:
    """A script that answers when it is told to."""

    def __init__(self, runtime: ToyRuntime) -> None:
        self._runtime = runtime
        self._jobs: list[Job] = []
        self._num_before = len(runtime.seen(Submit))
        runtime.script("act", self._hold)

    async def _hold(self, job: Job) -> None:
        self._jobs.append(job)
        await asyncio.Event().wait()

    def wait(self, count: int = 1) -> Submit:
        """The last of `count` requests since then, once they have come."""
        submit: Submit = self._runtime.wait_for(Submit, self._num_before + count)[-1]
        return submit

    def end(self, how: Callable[[Job], None] = answer) -> None:
        async def end() -> None:
            how(self._jobs.pop(0))

        self._runtime.run(end())
