"""Clients that do something random, and often do not wait for the answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np

from benchmarks.soak.deployment import NOOP, SPREAD, WHOLE
from mstar_rt.client import AsyncClient, RolloutStep, connect_async
from mstar_rt.errors import MstarError

SIZE = 64
NO_END_S = 60.0
"""A request that has neither an answer nor an error by then has no end."""

CANCEL_SHARE, DISCONNECT_SHARE = 0.15, 0.05
LONGEST_PATIENCE_S = 0.3
WAIT_AFTER_ERROR_S = 0.05


class Ends:
    """How requests ended, by name."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, name: str) -> None:
        self._counts[name] += 1

    def num(self, name: str) -> int:
        return self._counts[name]

    def sorted(self) -> list[tuple[str, int]]:
        return sorted(self._counts.items())


class Wrong(Exception):
    """An answer that is not what was asked for."""


class Actor:
    """One client at a time until `end_s`, a new one after each disconnect."""

    def __init__(self, address: str, ends: Ends, chooser: random.Random, end_s: float) -> None:
        self._address = address
        self._ends = ends
        self._random = chooser
        self._end_s = end_s
        self._actions: list[Callable[[AsyncClient], Awaitable[None]]] = [
            self._encode, self._rollout, self._plan, self._session, self._loop, self._stream, self._too_late,
        ]  # fmt: skip

    async def run(self) -> None:
        while time.monotonic() < self._end_s:
            async with connect_async(self._address) as client:
                while time.monotonic() < self._end_s and self._random.random() > DISCONNECT_SHARE:
                    await self._act(client)
                else:
                    await self._leave(client)

    async def _act(self, client: AsyncClient) -> None:
        action = self._random.choice(self._actions)
        patience_s = self._random.uniform(0, LONGEST_PATIENCE_S) if self._random.random() < CANCEL_SHARE else NO_END_S
        try:
            async with asyncio.timeout(patience_s):
                await action(client)
            self._ends.count("result")
        except TimeoutError:
            self._ends.count("no end" if patience_s == NO_END_S else "cancelled")
        except MstarError as error:
            self._ends.count(error.code)
            await asyncio.sleep(WAIT_AFTER_ERROR_S)
        except Wrong:
            self._ends.count("wrong")

    async def _leave(self, client: AsyncClient) -> None:
        """Close the connection while a request runs."""
        running = asyncio.ensure_future(self._act_on(client))
        await asyncio.sleep(self._random.uniform(0, LONGEST_PATIENCE_S))
        await client.close()
        await asyncio.gather(running, return_exceptions=True)
        self._ends.count("disconnected")

    async def _act_on(self, client: AsyncClient) -> None:
        await self._random.choice(self._actions)(client)

    # ---- what clients ask for

    def _model(self) -> str:
        return self._random.choice((WHOLE, SPREAD))

    def _frames(self, count: int = 1) -> np.ndarray:
        return np.full((count, SIZE, SIZE, 3), self._random.randrange(256), np.uint8)

    async def _encode(self, client: AsyncClient) -> None:
        count = self._random.randint(1, 3)
        encoded = await client.encode(self._model(), self._frames(count))
        _expect(len(encoded.latents) == count)

    async def _rollout(self, client: AsyncClient) -> None:
        sequences, horizon = self._random.randint(1, 4), self._random.randint(1, 6)
        actions = np.zeros((sequences, horizon, 7), np.float32)
        answers = [answer async for answer in client.rollout(self._model(), self._frames(), actions, np.zeros(7))]
        steps = [answer.step for answer in answers if isinstance(answer, RolloutStep)]
        _expect(steps == list(range(horizon)))

    async def _plan(self, client: AsyncClient) -> None:
        horizon = self._random.randint(1, 3)
        budget_ms = self._random.choice((None, 40.0, 200.0))
        plan = await client.plan(
            self._model(), self._frames(), self._frames(), np.zeros(7), budget_ms=budget_ms,
            rollout_horizon=horizon, num_samples=self._random.choice((8, 32, 64)), num_iterations=2,
        )  # fmt: skip
        _expect(plan.actions.shape == (horizon, 7))

    async def _session(self, client: AsyncClient) -> None:
        async with client.session(self._model(), rollout_horizon=1, num_samples=8, num_iterations=2) as session:
            await session.set_goal(self._frames())
            for _ in range(self._random.randint(1, 4)):
                await session.observe(self._frames(), np.zeros(7))
                _expect((await session.plan()).actions.shape == (1, 7))

    async def _loop(self, client: AsyncClient) -> None:
        num_bytes = self._random.choice((16, 1 << 15, 1 << 20))
        value = self._random.randrange(256)
        x = np.full(num_bytes, value, np.uint8)
        (output,) = await client.run(NOOP, "hop", {"x": x}, steps=self._random.randint(1, 60)).collect()
        _expect(output.value.tolist() == [value])

    async def _stream(self, client: AsyncClient) -> None:
        steps, value = self._random.randint(1, 60), self._random.randrange(256)
        x = np.full(1 << 15, value, np.uint8)
        outputs = await client.run(NOOP, "stream", {"x": x}, steps=steps).collect()
        _expect(np.concatenate([output.value for output in outputs]).tolist() == [value] * steps)

    async def _too_late(self, client: AsyncClient) -> None:
        x = np.zeros(1 << 15, np.uint8)
        await client.run(NOOP, "hop", {"x": x}, steps=100_000, budget_ms=self._random.uniform(1, 300)).collect()


def _expect(is_right: bool) -> None:
    if not is_right:
        raise Wrong
