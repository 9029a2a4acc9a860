"""What the robots share their workers with: a planner at a fixed rate, and painters that never pause."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mstar_rt.client import AsyncClient, ImageProgress
from mstar_rt.errors import MstarError

PLAN_HZ = 2.0
PLAN: dict[str, Any] = {"rollout_horizon": 2, "num_samples": 64, "num_iterations": 3}
STEPS = 20
"""Of a painting."""
IMAGE_PROMPT = "a red triangle on white"
"""Of a painter that draws what it is told, by the task DRAWING."""
DRAWING = "text_to_image"

RUNNING = "running"
"""What the process of the load says."""

AFTER_ERROR_S = 0.05


@dataclass
class Came:
    """Times on the machine's monotonic clock. A preview is a step of a painting."""

    previews_ns: list[int] = field(default_factory=list)
    pictures_ns: list[int] = field(default_factory=list)
    plans_ns: list[int] = field(default_factory=list)
    plan_ms: list[float] = field(default_factory=list)
    plan_iterations: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def note(self, error: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1

    def within(self, begin_ns: int, end_ns: int) -> Came:
        """What came in that time; errors are all that there were."""
        previews, pictures = (
            [at for at in times if begin_ns <= at < end_ns] for times in (self.previews_ns, self.pictures_ns)
        )
        plans = [index for index, at in enumerate(self.plans_ns) if begin_ns <= at < end_ns]
        return Came(
            previews,
            pictures,
            [self.plans_ns[index] for index in plans],
            [self.plan_ms[index] for index in plans],
            [self.plan_iterations[index] for index in plans],
            self.errors,
        )


async def paint(client: AsyncClient, model: str, came: Came, started: asyncio.Event, number: int) -> None:
    """One painting after the other, for ever. `started`: something has come."""
    prompt = np.random.default_rng(number).normal(size=16).astype(np.float32)
    draws = DRAWING in (await client.describe(model)).tasks
    while True:
        try:
            if draws:
                stream = client.draw(model, IMAGE_PROMPT, seed=number)
                arrivals = (isinstance(each, ImageProgress) async for each in stream)
            else:
                outputs = client.run(model, "paint", {"prompt": prompt}, steps=STEPS, seed=number)
                arrivals = (output.name == "preview" async for output in outputs)
            async for is_step in arrivals:
                (came.previews_ns if is_step else came.pictures_ns).append(time.monotonic_ns())
                started.set()
        except MstarError as error:
            came.note(f"paint {error.code}")
            await asyncio.sleep(AFTER_ERROR_S)


async def plan(client: AsyncClient, model: str, came: Came, started: asyncio.Event) -> None:
    """A plan every period, each with the period as its budget; the next one waits for it. `started`: one has ended."""
    size = int((await client.describe(model)).facts["image_size"])  # type: ignore[arg-type]
    frames, goal = np.random.default_rng(0).integers(0, 256, (2, 1, size, size, 3), np.uint8)
    state = np.array([0.1, -0.05, 0, 0, 0, 0.2, 0.5], np.float32)
    due_s = time.monotonic()
    while True:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        due_s = max(due_s + 1 / PLAN_HZ, time.monotonic())
        began_ns = time.monotonic_ns()
        try:
            answer = await client.plan(model, frames, goal, state, budget_ms=1e3 / PLAN_HZ, **PLAN)
        except MstarError as error:
            came.note(f"plan {error.code}")
            started.set()
            await asyncio.sleep(AFTER_ERROR_S)
            continue
        came.plans_ns.append(time.monotonic_ns())
        came.plan_ms.append((time.monotonic_ns() - began_ns) / 1e6)
        came.plan_iterations.append(answer.num_iterations)
        started.set()
