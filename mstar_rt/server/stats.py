"""Asking every process of the deployment for its counters, without waiting for those that do not answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from mstar_rt.message import AskStats, Stats
from mstar_rt.transport.endpoint import ControlEndpoint

TIMEOUT_S = 1.0


class _Question:
    def __init__(self) -> None:
        self.answers: dict[str, dict[str, float]] = {}
        self.arrived = asyncio.Event()


class StatsCollector:
    def __init__(self, endpoint: ControlEndpoint, processes: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = endpoint
        self._processes = list(processes)
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._questions: dict[int, _Question] = {}

    async def ask(self) -> tuple[dict[str, dict[str, float]], list[str]]:
        """Values by process, and the processes that did not answer within the timeout."""
        ask_id, question = next(self._ids), _Question()
        self._questions[ask_id] = question
        for process in self._processes:
            self._endpoint.send(process, AskStats(self._endpoint.address, ask_id))
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._silent(question):
                    question.arrived.clear()
                    await question.arrived.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[ask_id]
        return question.answers, self._silent(question)

    def receive(self, message: Stats) -> None:
        question = self._questions.get(message.ask_id)
        if question is not None:
            question.answers[message.source] = message.values
            question.arrived.set()

    def _silent(self, question: _Question) -> list[str]:
        return [process for process in self._processes if process not in question.answers]
