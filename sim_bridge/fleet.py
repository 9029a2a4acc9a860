"""Several robots at once, each with its own session, taking episodes from one list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mstar_rt.client import connect_async
from sim_bridge.episode import EpisodeResult, EpisodeSettings, run_episode
from sim_bridge.tasks import TaskKind


async def run_fleet(
    address: str,
    episodes: Sequence[tuple[TaskKind, int, EpisodeSettings]],
    num_robots: int,
    on_plan: Callable[[EpisodeResult], None],
    on_episode: Callable[[EpisodeResult], None],
    access: Mapping[str, str] | None = None,
) -> list[EpisodeResult]:
    """Run all episodes (kind, seed, settings) on `num_robots` robots; results in the order of `episodes`. `access` is
    what `connect` takes beside the address."""
    waiting = list(enumerate(episodes))[::-1]
    results: list[EpisodeResult | None] = [None] * len(episodes)

    async with connect_async(address, **(access or {})) as client:

        async def robot() -> None:
            while waiting:
                index, (kind, seed, settings) = waiting.pop()
                result = await run_episode(client, kind, seed, settings, on_plan)
                results[index] = result
                on_episode(result)

        async with asyncio.TaskGroup() as robots:
            for _ in range(num_robots):
                robots.create_task(robot())
    return [result for result in results if result is not None]
