"""Emissions to wire answers: one RolloutStep per imagined step, one PlanImprovement per iteration, and the
last word.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import TypeVar

import numpy as np

from mstar_rt.errors import DeadlineExceeded, Internal
from mstar_rt.message import Finished
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import fill_tensor
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.request_stream import Emission, RequestStream

NOT_SEARCHED = "not_searched"
"""Flag of a plan whose budget was over before its first iteration: it is where the search would have started."""

STEP_FIELDS = ("latent", "pose", "goal_distance")
PLAN_OUTPUTS = ("plan_actions", "plan_cost")
IMPROVEMENT_FIELDS = {"plan_actions": "actions", "elite_std": "elite_std"}

Group = dict[str, Emission]
RolloutAnswer = TypeVar("RolloutAnswer", wire.RolloutResponse, wire.SessionResponse)
PlanAnswer = TypeVar("PlanAnswer", wire.PlanResponse, wire.SessionResponse)


async def encode_answer(stream: RequestStream, timer: CallTimer) -> wire.EncodeResponse:
    emissions = {emission.name: emission for emission in await stream.collect()}
    if "latents" not in emissions:
        raise Internal("the model finished without emitting latents")
    answer = wire.EncodeResponse(request_id=stream.request_id, flags=_finished(stream).flags)
    with timer.encoding():
        _fill(answer.latents, emissions["latents"])
    answer.timing.CopyFrom(timer.timing(stream))
    return answer


async def observed_answer(stream: RequestStream, timer: CallTimer) -> wire.Observed:
    """To an observation that became part of a history."""
    emissions = {emission.name: emission for emission in await stream.collect()}
    num_frames = emissions.get("num_frames")
    finished = _finished(stream)
    return wire.Observed(
        decode_us=timer.decode_us,
        timing=timer.timing(stream),
        num_frames=0 if num_frames is None else int(_numbers(num_frames)[0]),
        flags=finished.flags,
        request_id=stream.request_id,
    )


async def rollout_answers(
    stream: RequestStream, timer: CallTimer, outputs: Collection[str], batched: bool, new: Callable[[], RolloutAnswer]
) -> AsyncIterator[RolloutAnswer]:
    """`outputs` are the names emitted per step; a step is answered when all of them have arrived. `new` makes an empty
    answer.
    """
    steps = Grouping(outputs)
    num_steps = 0
    async for emission in stream:
        for iteration, group in steps.add(emission):
            num_steps += 1
            answer = new()
            with timer.encoding():
                _fill_step(answer.step, iteration, group, batched)
            yield answer
    for iteration, group in steps.rest():
        num_steps += 1
        answer = new()
        _fill_step(answer.step, iteration, group, batched)
        yield answer
    finished = _finished(stream)
    answer = new()
    answer.done.CopyFrom(
        wire.RolloutDone(
            request_id=stream.request_id, num_steps=num_steps, timing=timer.timing(stream), flags=finished.flags
        )
    )
    yield answer


async def plan_answers(
    stream: RequestStream,
    timer: CallTimer,
    outputs: Collection[str],
    improvements: bool,
    new: Callable[[], PlanAnswer],
) -> AsyncIterator[PlanAnswer]:
    """The plan is what the last completed iteration made of it, or `plan_actions` emitted after the loop if
    there are. `new` makes an empty answer.
    """
    groups = Grouping({*outputs, *PLAN_OUTPUTS})
    last: wire.PlanImprovement | None = None
    async for emission in stream:
        for iteration, group in groups.add(emission):
            answer = new()
            with timer.encoding():
                _fill_improvement(answer.improvement, iteration, group, timer)
            last = answer.improvement
            if improvements:
                yield answer
    rest = dict(groups.rest())
    after_loop = rest.pop((), {})
    for iteration, group in rest.items():
        if group.keys() >= set(PLAN_OUTPUTS):
            answer = new()
            _fill_improvement(answer.improvement, iteration, group, timer)
            last = answer.improvement
            if improvements:
                yield answer
    finished = _finished(stream)
    if last is None:
        raise DeadlineExceeded("the budget was over before the first iteration: give the plan more time")
    answer = new()
    with timer.encoding():
        _fill_plan(answer.plan, last, after_loop)
    answer.plan.request_id = stream.request_id
    answer.plan.num_iterations = 0 if NOT_SEARCHED in finished.flags else last.iteration + 1
    answer.plan.flags.extend(finished.flags)
    answer.plan.timing.CopyFrom(timer.timing(stream))
    yield answer


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


def _fill_step(step: wire.RolloutStep, iteration: tuple[int, ...], group: Group, batched: bool) -> None:
    """What has no elements was not asked for; a step without any is there all the same."""
    step.SetInParent()
    step.step = iteration[-1] if iteration else 0
    for name, emission in group.items():
        if 0 not in emission.shape:
            _fill(getattr(step, name) if name in STEP_FIELDS else step.extra[name], emission, drop_batch=not batched)


def _fill_improvement(
    improvement: wire.PlanImprovement, iteration: tuple[int, ...], group: Group, timer: CallTimer
) -> None:
    costs = _numbers(group["plan_cost"])
    improvement.iteration = iteration[0] if iteration else 0
    improvement.best_cost = float(costs[0])
    improvement.elite_mean_cost = float(costs[1])
    improvement.elapsed_us = timer.elapsed_us
    for name, emission in group.items():
        if name == "plan_cost":
            continue
        field = IMPROVEMENT_FIELDS.get(name)
        _fill(improvement.extra[name] if field is None else getattr(improvement, field), emission)


def _fill_plan(plan: wire.Plan, last: wire.PlanImprovement, after_loop: Group) -> None:
    if "plan_actions" in after_loop:
        _fill(plan.actions, after_loop["plan_actions"])
    else:
        plan.actions.CopyFrom(last.actions)
    plan.best_cost = last.best_cost
    plan.elite_mean_cost = last.elite_mean_cost
    if last.HasField("elite_std"):
        plan.elite_std.CopyFrom(last.elite_std)


def _numbers(emission: Emission) -> np.ndarray:
    return np.frombuffer(emission.data, emission.dtype)


def _fill(tensor: tensor_pb2.Tensor, emission: Emission, drop_batch: bool = False) -> None:
    fill_tensor(tensor, emission.dtype, _shape(emission, drop_batch), emission.data)


def _shape(emission: Emission, drop_batch: bool) -> tuple[int, ...]:
    shape = emission.shape
    return shape[1:] if drop_batch and shape and shape[0] == 1 else shape


def _finished(stream: RequestStream) -> Finished:
    assert stream.finished is not None, "a stream that ended without an error is finished"
    return stream.finished
