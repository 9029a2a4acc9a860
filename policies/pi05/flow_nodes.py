"""From noise to a chunk of actions: the flow, one step at a time, and how it goes on from the last chunk."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from mstar_rt.errors import FailedPrecondition
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.model.policy import NO_CHUNKING
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.flow import euler_times
from policies.anytime.pace import is_last_step, noise_generator
from policies.anytime.step_times import StepTimes
from policies.chunking.options import PREFIX, check_chunking, mask_end
from policies.chunking.weights import held_rows, prefix_weights
from policies.pi05.compiled_velocity import CompiledVelocity, Velocity
from policies.pi05.flow_step import FlowStep, mode_of
from policies.pi05.network import Pi05Network
from policies.pi05.processor import Processors, processor_of
from policies.pi05.schedule import Schedules
from policies.pi05.settings import PolicySettings
from policies.pi05.walks import CONTEXT

GUIDED = "guided"
NO_PREVIOUS = "no_previous_actions"
"""The flag of a request that asks for chunking and has nothing to go on from."""


class Start:
    """Noise, and the previous actions as the network sees them from the new state."""

    def __init__(self, settings: PolicySettings, processors: Processors, device: str) -> None:
        self._device = device
        self._horizon = settings.network.action_horizon
        self._dim = settings.network.action_dim
        self._max_prefix_delay = settings.max_prefix_delay
        self._processors = processors

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._started(call) for call in calls]

    def _started(self, call: NodeCall) -> NodeResult:
        previous, mode = call.inputs["previous_actions"], call.params["chunking"]
        check_chunking(call.params, previous is not None, self._max_prefix_delay)
        x, times = self._noise(call), euler_times(call.params["num_denoise_steps"])
        if previous is None:
            flags = () if mode == NO_CHUNKING else (NO_PREVIOUS,)
            return NodeResult({"x": x, "previous": x[:0], "guidance": x[:0, 0], "times": times}, flags=flags)
        delay = call.params["delay"]
        if mode == PREFIX:
            guidance = prefix_weights("zeros", delay, delay, self._horizon)
        else:
            end = mask_end(call.params, self._horizon, len(previous))
            guidance = prefix_weights(call.params["schedule"], delay, end, self._horizon)
        seen = processor_of(self._processors, call).network_actions(previous, call.inputs.get("state"))
        held = held_rows(seen, self._horizon)
        return NodeResult({"x": x, "previous": held, "guidance": guidance.to(self._device), "times": times})

    def _noise(self, call: NodeCall) -> torch.Tensor:
        given = call.inputs["noise"]
        if given is not None:
            return given
        return torch.randn(self._horizon, self._dim, generator=noise_generator(call)).to(self._device)


class Denoise:
    """One Euler step of the flow. It sees the context, and leaves nothing in it."""

    def __init__(self, network: Pi05Network, velocity: Velocity, step_times: StepTimes) -> None:
        self.is_compiled = isinstance(velocity, CompiledVelocity)
        self._velocity = velocity
        self._schedules = Schedules(network)
        self._step_times = step_times

    def batch_key(self, call: NodeCall) -> Hashable:
        """Differentiated steps, and those with a time per action, would make others slower."""
        mode = mode_of(call)
        return mode if mode in (GUIDED, PREFIX) else NO_CHUNKING

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        return [AttentionStep(call.sequences.get(CONTEXT), len(call.inputs["x"]), StepKind.TRANSIENT_BLOCK)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        self._step_times.begin(calls)
        step = FlowStep(self._velocity, self._schedules, calls, attention)
        moved = {GUIDED: step.guided, PREFIX: step.with_prefix}.get(mode_of(calls[0]), step.plain)()
        return [NodeResult({"x": x}, leave=is_last_step(call)) for x, call in zip(moved, calls, strict=True)]


class Finish:
    """What the flow ended in, in the robot's units and dimensions."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._finished(call) for call in calls]

    def _finished(self, call: NodeCall) -> NodeResult:
        processor = processor_of(self._processors, call)
        actions = processor.robot_actions(call.inputs["x"], call.inputs.get("state"))
        if not torch.isfinite(actions).all():
            raise FailedPrecondition(
                "the policy gives NaN or infinity; check its weights and statistics, and that the inputs are in range"
            )
        return NodeResult({"actions": actions, "num_denoise_steps": torch.tensor(len(call.inputs["times"]))})
