"""Run every task of a model on each of its ranks, before requests are let in there.

First calls are many times slower than later ones (lazy initialisation, compilation, page faults); a robot must not meet
them. It also proves at start, not at the first request, that every walk runs to its end, across all its ranks. At the
start each task runs again, which tells what it costs: admission has to know that before the first robot comes. A
policy's task runs several times at once, too (see shared_runs).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from mstar_rt.errors import FailedPrecondition, Internal, MstarError, ResourceExhausted, Unavailable
from mstar_rt.message import Finished, WarmUp
from mstar_rt.model import ParamSpec, ParamValue, ServedModel, TaskSpec
from mstar_rt.model.generation import warm_up_options
from mstar_rt.server.dispatch import Dispatcher, new_id
from mstar_rt.server.shared_runs import MAX_STEP_S, run_alone, run_together

NUM_MEASURED = {"control": 3, "planning": 1, "generation": 1}
"""Runs of a task, by its criticality, that tell what it costs. Of three the middle one counts."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries of a warm-up that lacks something which may come back."""

Given = tuple[dict[str, np.ndarray], dict[str, ParamValue]]
"""Tensors and options of a request."""

_log = logging.getLogger(__name__)


class WarmUps:
    """Answers the conductor's WarmUp with Warmed, several at once. `cannot_start` hears of a task that does not run at
    the start; what fails later is the conductor's business.

    One that fails with UNAVAILABLE is tried again before that is told, and does not end the start: the conductor alone
    knows whether a worker was lost. Then it asks again, and does not listen to answers to what it asked before.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        dispatcher: Dispatcher,
        cannot_start: Callable[[MstarError], None],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._models = models
        self._dispatcher = dispatcher
        self._cannot_start = cannot_start
        self._pauses_s = pauses_s
        self._running: dict[tuple[str, tuple[int, ...]], asyncio.Task[None]] = {}
        dispatcher.on_warm_up = self.begin

    def begin(self, asked: WarmUp) -> None:
        where = (asked.model, tuple(asked.replicas))
        if (overtaken := self._running.get(where)) is not None:
            overtaken.cancel()
        self._running[where] = asyncio.create_task(self._warm(asked))

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _warm(self, asked: WarmUp) -> None:
        try:
            await self._patiently(asked)
        except Unavailable as error:
            if not self._dispatcher.draining:
                self._dispatcher.warmed(asked.model, asked.generation, str(error))
        except MstarError as error:
            self._failed(asked, error)
        except Exception as error:
            _log.error("the warm-up of model %s failed", asked.model, exc_info=error)
            self._failed(asked, Internal(f"the warm-up of model {asked.model!r} failed; the server's log has why"))
        else:
            self._dispatcher.warmed(asked.model, asked.generation)

    def _failed(self, asked: WarmUp, error: MstarError) -> None:
        self._dispatcher.warmed(asked.model, asked.generation, str(error))
        if asked.at_start:
            self._cannot_start(error)

    async def _patiently(self, asked: WarmUp) -> None:
        """A rank that has come back uses others with requests on them: what is exhausted there may come back too."""
        model = self._models[asked.model]
        for pause_s in self._pauses_s:
            try:
                return await warm_up(model, self._dispatcher, asked.replicas, measures=asked.at_start)
            except Unavailable as error:
                if self._dispatcher.draining:
                    raise
                _log.info("warm-up %d of model %s: %s", asked.generation, asked.model, error)
            except ResourceExhausted as error:
                if asked.at_start:
                    raise
                _log.warning("%s; trying again in %g s", error, pause_s)
            await asyncio.sleep(pause_s)
        return await warm_up(model, self._dispatcher, asked.replicas, measures=asked.at_start)


async def warm_up(model: ServedModel, dispatcher: Dispatcher, replicas: Sequence[int], measures: bool = True) -> None:
    """All tasks on these ranks of the replica groups, in one session, with zeros (every symbol of a shape being 1) and
    default options. `measures`: nobody knows yet what they cost.

    Raises:
        MstarError: a task does not run.
    """
    session_id = await dispatcher.open_session(model.name, warmup=True)
    try:
        waiting: list[TaskSpec] = list(model.tasks)
        while waiting:
            waiting = await _run_what_can(model, waiting, dispatcher, session_id, replicas, measures)
    finally:
        dispatcher.close_session(session_id)


async def _run_what_can(
    model: ServedModel,
    tasks: list[TaskSpec],
    dispatcher: Dispatcher,
    session_id: str,
    replicas: Sequence[int],
    measures: bool,
) -> list[TaskSpec]:
    """The tasks that need what another one persists first. Raises if that is what all of them need."""
    later = []
    for task in tasks:
        try:
            await _run(model, task, dispatcher, session_id, replicas, measures)
        except FailedPrecondition as error:
            later.append(task)
            if len(later) == len(tasks):
                raise _named(model, task, error) from error
        except Unavailable:
            raise
        except MstarError as error:
            raise _named(model, task, error) from error
    return later


async def _run(
    model: ServedModel,
    task: TaskSpec,
    dispatcher: Dispatcher,
    session_id: str,
    replicas: Sequence[int],
    measures: bool,
) -> None:
    """A policy's task without the cameras that it can do without, and with all of them, as most robots have them; alone
    and together with others."""

    async def once(given: Given, is_cold: bool, session_id: str | None = session_id) -> Finished:
        tensors, params = given
        stream = dispatcher.submit(
            model.name,
            task.name,
            tensors,
            params,
            request_id=new_id("w"),
            criticality="planning",  # takes turns with what other models on the rank do, and does not wait for ever
            session_id=session_id,
            warmup_on=replicas,
            is_cold=is_cold,
        )
        async with stream:
            async for _ in stream:
                pass
        assert stream.finished is not None
        return stream.finished

    least = zeros(task)
    few = warm_up_options(model, task)
    await once((least, model.check_request(task.name, least, {**needed_params(task), **few})), is_cold=True)
    usual = usual_request(model, task, few)
    if usual[0].keys() != least.keys():
        await once(usual, is_cold=True)
    is_control = task.criticality == "control"
    if not (measures or is_control):
        return
    try:
        alone = await run_alone(partial(once, usual, not measures), NUM_MEASURED[task.criticality] if measures else 1)
        if is_control:
            for is_cold in (True, not measures):
                # Beside a rank that has come back others may serve robots.
                max_step_s = math.inf if measures else MAX_STEP_S
                await run_together(partial(once, usual, is_cold, None), alone, max_step_s)
    except Unavailable:
        raise
    except MstarError as error:
        _log.info("task %s of model %s cannot run again, so its cost is unknown: %s", task.name, model.name, error)


def _named(model: ServedModel, task: TaskSpec, error: MstarError) -> MstarError:
    return type(error)(f"warm-up of model {model.name!r}, task {task.name!r}: {error}")


def usual_request(
    model: ServedModel, task: TaskSpec, options: Mapping[str, ParamValue] = MappingProxyType({})
) -> Given:
    """Tensors of zeros and all options of a request that costs what most do: a robot's has all cameras, and goes on
    from its last chunk if it asks for that."""
    usual = [] if model.policy is None else [camera.tensor for camera in model.policy.cameras]
    if options.get("chunking", "none") != "none":
        usual.append("previous_actions")
    tensors = zeros(task, also=usual)
    return tensors, model.check_request(task.name, tensors, {**needed_params(task), **options})


def zeros(task: TaskSpec, also: Collection[str] = ()) -> dict[str, np.ndarray]:
    """What is needed, the first tensor of each group of which one is, and those named `also`."""
    wanted = {group[0] for group in task.one_of}.union(also)
    return {
        spec.name: np.zeros([1 if isinstance(size, str) else size for size in spec.shape], dtype=spec.dtypes[0])
        for spec in task.inputs
        if not spec.optional or spec.name in wanted
    }


def needed_params(task: TaskSpec) -> dict[str, ParamValue]:
    """Values for the options that have no default: the smallest that is allowed. Shapes give derived ones."""
    derived = {name for name, _ in task.derived}
    return {
        spec.name: _smallest(spec)
        for spec in task.params
        if spec.default is None and not spec.optional and spec.name not in derived
    }


def _smallest(spec: ParamSpec) -> ParamValue:
    least: Any = spec.minimum if spec.minimum is not None else min(spec.maximum if spec.maximum is not None else 1, 1)
    values: dict[str, ParamValue] = {
        "bool": False,
        "int": int(least),
        "float": float(least),
        "str": spec.choices[0] if spec.choices else "",
        "floats": (float(least),) * (spec.length or 1),
    }
    return values[spec.kind]
