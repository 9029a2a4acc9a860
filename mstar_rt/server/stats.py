"""Asking every process of the deployment for something, without waiting for those that do not answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mstar_rt.message import AskStats, AskTrace, Distribution, Stats, Trace
from mstar_rt.transport.endpoint import ControlEndpoint

TIMEOUT_S = 1.0

Answer = Stats | Trace


@dataclass(frozen=True)
class Collected:
    """Counters and gauges, and histograms, by process and name; `silent` processes did not answer in time."""

    values: dict[str, dict[str, float]]
    histograms: dict[str, dict[str, Distribution]]
    silent: list[str]


class _Question:
    def __init__(self, processes: Sequence[str]) -> None:
        self.silent = list(processes)
        self.answers: dict[str, Answer] = {}
        self.arrived = asyncio.Event()


@dataclass
class Questions:
    """Those that are open. `workers` are the addresses of all workers."""

    endpoint: ControlEndpoint
    conductor: str
    workers: Sequence[str]
    timeout_s: float = TIMEOUT_S
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _open: dict[int, _Question] = field(default_factory=dict)

    async def stats(self) -> Collected:
        address = self.endpoint.address
        question = await self._ask([self.conductor, *self.workers], lambda ask_id: AskStats(address, ask_id))
        answers = {process: answer for process, answer in question.answers.items() if isinstance(answer, Stats)}
        return Collected(
            {process: answer.values for process, answer in answers.items()},
            {process: answer.histograms for process, answer in answers.items()},
            question.silent,
        )

    async def traces(self, since_ns: int) -> tuple[dict[str, bytes], list[str]]:
        """Rows (see trace.TraceRing.encoded) by worker, of what ended at `since_ns` or later, and who was silent."""
        address = self.endpoint.address
        question = await self._ask(self.workers, lambda ask_id: AskTrace(address, ask_id, since_ns))
        answers = question.answers.items()
        return {process: answer.rows for process, answer in answers if isinstance(answer, Trace)}, question.silent

    async def _ask(self, processes: Sequence[str], message: Callable[[int], AskStats | AskTrace]) -> _Question:
        ask_id = next(self._ids)
        question = self._open[ask_id] = _Question(processes)
        for process in processes:
            self.endpoint.send(process, message(ask_id))
        try:
            async with asyncio.timeout(self.timeout_s):
                while question.silent:
                    question.arrived.clear()
                    await question.arrived.wait()
        except TimeoutError:
            pass
        finally:
            del self._open[ask_id]
        return question

    def receive(self, answer: Answer) -> None:
        """Without effect if nobody waits for it any more."""
        question = self._open.get(answer.ask_id)
        if question is not None and answer.source in question.silent:
            question.silent.remove(answer.source)
            question.answers[answer.source] = answer
            question.arrived.set()
