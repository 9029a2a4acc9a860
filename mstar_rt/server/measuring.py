"""What a task costs, measured before a robot is let in that asks for what never ran, or refused.

Costs come from what ran last. A machine that was busy then (others loading their weights, say) would keep robots out
for good: without them nothing runs that could show that it is quiet now. And what never ran may cost more than what a
task costs usually.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping

from mstar_rt.clock import Clock
from mstar_rt.errors import MstarError
from mstar_rt.message import Finished
from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.server.dispatch import Dispatcher, new_id
from mstar_rt.server.shared_runs import MAX_STEP_S, run_alone, run_together
from mstar_rt.server.warmup import usual_request

NUM_RUNS = 3
"""So many settle it, if what is known is old."""
LEAST_PAUSE_NS = 5_000_000_000
"""Robots that try again and again cost the others little."""
MAX_WAIT_S = 2.0
"""Where it takes longer there is no time for another robot."""
MAX_CHOICES = 32
"""Of options that are remembered to have run, the newest of each task."""


class Measuring:
    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._last_ns: dict[tuple[str, str], int] = {}
        self._ran: dict[Hashable, None] = {}

    async def first(self, model: ServedModel, task_name: str, options: Mapping[str, ParamValue]) -> None:
        """Run the task if no robot has chosen these options yet, and the warm-up has not either.

        If it does not run: a robot that is let in for what the warm-up cost is measured as it runs.
        """
        task = model.task(task_name)
        warmed_up = usual_request(model, task)[1]
        choices = [
            (spec.name, options[spec.name])
            for spec in task.params
            if (spec.kind == "bool" or spec.choices)
            and spec.name in options
            and options[spec.name] != warmed_up.get(spec.name)
        ]
        key = (model.name, task_name, *choices)
        if not choices or key in self._ran:
            return
        if len(self._ran) >= MAX_CHOICES:
            self._ran.pop(next(iter(self._ran)))
        self._ran[key] = None
        await self._run(model, task_name, options)

    async def again(self, model: ServedModel, task_name: str, options: Mapping[str, ParamValue]) -> bool:
        """Run the task as a robot with these options would. False: it has run lately, or does not run."""
        now_ns, key = self._clock.now_ns(), (model.name, task_name)
        if now_ns - self._last_ns.get(key, -LEAST_PAUSE_NS) < LEAST_PAUSE_NS:
            return False
        self._last_ns[key] = now_ns
        return await self._run(model, task_name, options)

    async def _run(self, model: ServedModel, task_name: str, options: Mapping[str, ParamValue]) -> bool:
        """Alone first, then as robots do that share steps. False: it did not even run alone."""
        has_run = False
        try:
            tensors, params = usual_request(model, model.task(task_name), options)

            async def once() -> Finished:
                stream = self._dispatcher.submit(
                    model.name, task_name, tensors, params, request_id=new_id("m"), criticality="planning"
                )
                async with stream:
                    async for _ in stream:
                        pass
                assert stream.finished is not None
                return stream.finished

            async with asyncio.timeout(MAX_WAIT_S):
                alone = await run_alone(once, NUM_RUNS)
                has_run = True
                await run_together(once, alone, MAX_STEP_S)
        except (MstarError, TimeoutError):
            return has_run
        return True
