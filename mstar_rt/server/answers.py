"""Emissions to wire answers: one RolloutStep per imagined step, one PlanImprovement per iteration, and the
last word.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator

import numpy as np

from mstar_rt.errors import DeadlineExceeded, Internal
from mstar_rt.message import Finished
from mstar_rt.protos import tensor_pb2, world_model_pb2
from mstar_rt.protos.arrays import tensor_from_bytes
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.request_stream import Emission, RequestStream

STEP_FIELDS = ("latent", "pose", "goal_distance")
PLAN_OUTPUTS = ("plan_actions", "plan_cost")

Group = dict[str, Emission]


async def encode_answer(stream: RequestStream, timer: CallTimer) -> world_model_pb2.EncodeResponse:
    emissions = {emission.name: emission async for emission in stream}
    if "latents" not in emissions:
        raise Internal("the model finished without emitting latents")
    with timer.encoding():
        latents = _tensor(emissions["latents"])
    finished = _finished(stream)
    return world_model_pb2.EncodeResponse(
        request_id=stream.request_id, latents=latents, timing=timer.timing(finished), flags=finished.flags
    )


async def rollout_answers(
    stream: RequestStream, timer: CallTimer, outputs: Collection[str], batched: bool
) -> AsyncIterator[world_model_pb2.RolloutStep | world_model_pb2.RolloutDone]:
    """`outputs` are the names emitted per step; a step is answered when all of them have arrived."""
    steps = Grouping(outputs)
    num_steps = 0
    async for emission in stream:
        for iteration, group in steps.add(emission):
            num_steps += 1
            with timer.encoding():
                step = _step(iteration, group, batched)
            yield step
    for iteration, group in steps.rest():
        num_steps += 1
        yield _step(iteration, group, batched)
    finished = _finished(stream)
    yield world_model_pb2.RolloutDone(
        request_id=stream.request_id, num_steps=num_steps, timing=timer.timing(finished), flags=finished.flags
    )


async def plan_answers(
    stream: RequestStream, timer: CallTimer, outputs: Collection[str], improvements: bool
) -> AsyncIterator[world_model_pb2.PlanImprovement | world_model_pb2.Plan]:
    """The plan is what the last completed iteration made of it, or `plan_actions` emitted after the loop if
    there are.
    """
    groups = Grouping({*outputs, *PLAN_OUTPUTS})
    last: world_model_pb2.PlanImprovement | None = None
    async for emission in stream:
        for iteration, group in groups.add(emission):
            with timer.encoding():
                last = _improvement(iteration, group, timer)
            if improvements:
                yield last
    rest = dict(groups.rest())
    after_loop = rest.pop((), {})
    for iteration, group in rest.items():
        if group.keys() >= set(PLAN_OUTPUTS):
            last = _improvement(iteration, group, timer)
            if improvements:
                yield last
    finished = _finished(stream)
    if last is None:
        raise DeadlineExceeded("the budget was over before the first iteration: give the plan more time")
    with timer.encoding():
        actions = _tensor(after_loop["plan_actions"]) if "plan_actions" in after_loop else last.actions
    yield world_model_pb2.Plan(
        request_id=stream.request_id,
        actions=actions,
        best_cost=last.best_cost,
        elite_mean_cost=last.elite_mean_cost,
        num_iterations=last.iteration + 1,
        flags=finished.flags,
        timing=timer.timing(finished),
    )


class Grouping:
    """Collects emissions of one iteration until `names` are all there."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._open: dict[tuple[int, ...], Group] = {}

    def add(self, emission: Emission) -> Iterator[tuple[tuple[int, ...], Group]]:
        group = self._open.setdefault(emission.iteration, {})
        group[emission.name] = emission
        if self._names <= group.keys():
            yield emission.iteration, self._open.pop(emission.iteration)

    def rest(self) -> Iterator[tuple[tuple[int, ...], Group]]:
        """Iterations of which something was not emitted."""
        yield from sorted(self._open.items())
        self._open = {}


def _step(iteration: tuple[int, ...], group: Group, batched: bool) -> world_model_pb2.RolloutStep:
    step = world_model_pb2.RolloutStep(step=iteration[-1] if iteration else 0)
    for name, emission in group.items():
        tensor = _tensor(emission, drop_batch=not batched)
        (getattr(step, name) if name in STEP_FIELDS else step.extra[name]).CopyFrom(tensor)
    return step


def _improvement(iteration: tuple[int, ...], group: Group, timer: CallTimer) -> world_model_pb2.PlanImprovement:
    costs = np.frombuffer(group["plan_cost"].data, group["plan_cost"].dtype)
    improvement = world_model_pb2.PlanImprovement(
        iteration=iteration[0] if iteration else 0,
        actions=_tensor(group["plan_actions"]),
        best_cost=float(costs[0]),
        elite_mean_cost=float(costs[1]),
        elapsed_us=timer.elapsed_us,
    )
    for name in group.keys() - set(PLAN_OUTPUTS):
        improvement.extra[name].CopyFrom(_tensor(group[name]))
    return improvement


def _tensor(emission: Emission, drop_batch: bool = False) -> tensor_pb2.Tensor:
    shape = emission.shape
    if drop_batch and shape and shape[0] == 1:
        shape = shape[1:]
    return tensor_from_bytes(emission.dtype, shape, emission.data)


def _finished(stream: RequestStream) -> Finished:
    assert stream.finished is not None, "a stream that ended without an error is finished"
    return stream.finished
