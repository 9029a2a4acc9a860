"""One observation to one action chunk: the request, and what becomes of its answer."""

from __future__ import annotations

import numpy as np

from mstar_rt.errors import Internal
from mstar_rt.model import ParamValue
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import fill_tensor
from mstar_rt.server.control.arrival import Arrived
from mstar_rt.server.control.chunking import Continuation
from mstar_rt.server.control.decoding import vector
from mstar_rt.server.control.history import tensors_of
from mstar_rt.server.control.seeds import chunk_seed
from mstar_rt.server.control.settings import ControlSettings
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.request_stream import Emission, RequestStream


def task_input(settings: ControlSettings, arrived: Arrived, continued: Continuation | None) -> TaskInput:
    assert arrived.window is not None, "it has been decoded"
    tensors = tensors_of(arrived.window, settings.cameras)
    params: dict[str, ParamValue] = dict(settings.params)
    if settings.policy.takes_instruction:
        params["instruction"] = arrived.instruction
    if settings.seed is not None:
        episode = arrived.episode
        params["seed"] = chunk_seed(episode.seed, episode.epoch, episode.sent.num_sent, settings.max_seed)
    if continued is not None:
        tensors["previous_actions"] = continued.previous_actions
        params |= continued.params
    if arrived.message.HasField("noise"):
        tensors["noise"] = vector(arrived.message.noise, "noise")
    return TaskInput(settings.task, tensors, params)


async def answer(
    stream: RequestStream, settings: ControlSettings, arrived: Arrived, given: TaskInput, continued: Continuation | None
) -> tuple[wire.ControlResponse, np.ndarray]:
    """The chunk as it is sent, and its actions, [H, A] float32.

    Raises:  what the request fails with.  Internal: it gave no actions, or some that are not finite.
    """
    emitted = {emission.name: emission for emission in await stream.collect()}
    finished = stream.finished
    assert finished is not None, "a stream that ended without an error is finished"
    message, timer = arrived.message, arrived.timer
    with timer.encoding():
        actions = _actions(emitted.get("actions"), settings)
        if arrived.episode.ensemble is not None:
            assert arrived.tick is not None, "an ensemble's observations say where they are"
            actions = arrived.episode.ensemble.add(arrived.tick, actions)
        response = wire.ControlResponse()
        chunk = response.chunk
        chunk.answers_seq = message.seq
        chunk.epoch = arrived.episode.epoch
        fill_tensor(chunk.actions, "float32", actions.shape, actions.tobytes())
        chunk.delay_assumed = 0 if continued is None else continued.delay
        chunk.num_denoise_steps = _num_denoise_steps(emitted.get("num_denoise_steps"), settings, given)
        if message.HasField("client_time_ns"):
            chunk.client_time_ns = message.client_time_ns
        chunk.instruction_index = arrived.instruction_index
        chunk.request_id = stream.request_id
        chunk.flags.extend(finished.flags)
    chunk.timing.CopyFrom(timer.timing(stream))
    return response, actions


def _actions(emission: Emission | None, settings: ControlSettings) -> np.ndarray:
    shape = (settings.policy.action_horizon, settings.policy.action.size)
    if emission is None or emission.dtype != "float32" or emission.shape != shape:
        raise Internal(f"the policy finished without actions of float32 {list(shape)}")
    actions = np.frombuffer(emission.data, np.float32).reshape(shape)
    if not np.isfinite(actions).all():
        raise Internal("the policy gave actions that are not finite: nothing was sent")
    return actions


def _num_denoise_steps(emission: Emission | None, settings: ControlSettings, given: TaskInput) -> int:
    """As the policy tells it, else as the request has it; 0 for a policy that has no such steps."""
    if emission is not None:
        return int(np.frombuffer(emission.data, emission.dtype)[0])
    task = settings.model.task(settings.task)
    default = next((spec.default for spec in task.params if spec.name == "num_denoise_steps"), None)
    return int(given.params.get("num_denoise_steps", default) or 0)  # type: ignore[arg-type]
