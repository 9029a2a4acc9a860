"""What a task costs, measured again before a robot is refused for it.

Costs come from what ran last. A machine that was busy then (others loading their weights, say) would keep robots out
for good: without them nothing runs that could show that it is quiet now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mstar_rt.clock import Clock
from mstar_rt.errors import MstarError
from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.server.dispatch import Dispatcher, new_id
from mstar_rt.server.warmup import usual_request

NUM_RUNS = 3
"""So many settle it, if what is known is old."""
LEAST_PAUSE_NS = 5_000_000_000
"""Robots that try again and again cost the others little."""
MAX_WAIT_S = 2.0
"""Where it takes longer there is no time for another robot."""


class Measuring:
    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._last_ns: dict[tuple[str, str], int] = {}

    async def again(self, model: ServedModel, task_name: str, options: Mapping[str, ParamValue]) -> bool:
        """Run the task as a robot with these options would. False: it has run lately, or does not run."""
        now_ns, key = self._clock.now_ns(), (model.name, task_name)
        if now_ns - self._last_ns.get(key, -LEAST_PAUSE_NS) < LEAST_PAUSE_NS:
            return False
        self._last_ns[key] = now_ns
        try:
            tensors, params = usual_request(model, model.task(task_name), options)
            async with asyncio.timeout(MAX_WAIT_S):
                for _ in range(NUM_RUNS):
                    stream = self._dispatcher.submit(
                        model.name, task_name, tensors, params, request_id=new_id("m"), criticality="planning"
                    )
                    async with stream:
                        async for _ in stream:
                            pass
        except (MstarError, TimeoutError):
            return False
        return True
