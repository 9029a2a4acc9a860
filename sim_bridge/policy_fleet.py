"""Several robots at once, each with a control session of its own, taking episodes from one list."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mstar_rt.client import connect_async
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.client.control.results import ControlStats
from mstar_rt.errors import MstarError, ResourceExhausted
from sim_bridge.delayed_link import DelayedLink
from sim_bridge.instruction_tasks import task_named
from sim_bridge.policy_episode import PolicyEpisode, RealTime, drive
from sim_bridge.tabletop_servo import CONTROL_HZ


@dataclass(frozen=True)
class PolicySetting:
    """How the robots of a run are driven. `chunking` None: every chunk is made anew.

    `added_delay_s`: how much later everything arrives that the server says.
    """

    chunking: str | None
    added_delay_s: float
    replan_every: int
    num_robots: int
    model: str = "policy"

    @property
    def name(self) -> str:
        return f"{self.chunking or 'off'}, {self.added_delay_s * 1e3:.0f} ms"


@dataclass
class FleetRun:
    """Episodes in the order in which they were asked for, what each robot's session counted, and why the server did not
    take all robots on."""

    setting: PolicySetting
    episodes: list[PolicyEpisode]
    stats: list[ControlStats] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def num_robots(self) -> int:
        return self.setting.num_robots - len(self.refusals)


async def run_setting(
    address: str,
    setting: PolicySetting,
    episodes: Sequence[tuple[str, int]],
    on_episode: Callable[[PolicyEpisode], None] = lambda episode: None,
    access: Mapping[str, str] | None = None,
) -> FleetRun:
    """Drive episodes (task, seed) in real time. A session that ends for good ends its episode, which says why; the
    robot then opens another one. One that the server does not take on beside the others leaves its episodes to them.
    `access` is what `connect` takes beside the address.

    Raises:  MstarError: a session cannot be opened, or not a single one.
    """
    run = FleetRun(setting, [PolicyEpisode(task, seed) for task, seed in episodes])
    waiting = deque(run.episodes)
    async with contextlib.AsyncExitStack() as stack:
        if setting.added_delay_s > 0:
            link = await stack.enter_async_context(DelayedLink(address, setting.added_delay_s))
            address = link.address
        client = await stack.enter_async_context(connect_async(address, **(access or {})))

        def session(instruction: str) -> AsyncControlSession:
            return client.control(
                setting.model,
                instruction=instruction,
                control_hz=CONTROL_HZ,
                chunking=setting.chunking,
                replan_every=setting.replan_every,
                hold="repeat_last",
            )

        async def robot(phase_s: float) -> None:
            await asyncio.sleep(phase_s)
            while waiting:
                async with contextlib.AsyncExitStack() as opened:
                    try:
                        control = await opened.enter_async_context(session(task_named(waiting[0].task).instruction))
                    except ResourceExhausted as error:
                        run.refusals.append(str(error))
                        return
                    while waiting:
                        episode = waiting.popleft()
                        try:
                            await drive(control, episode, RealTime())
                        except MstarError as error:
                            episode.error = str(error)
                            break
                        finally:
                            on_episode(episode)
                run.stats.append(control.stats)

        # Robots do not tick together: their ticks are spread over the period.
        await _all(robot(index / setting.num_robots / CONTROL_HZ) for index in range(setting.num_robots))
        if waiting:
            raise ResourceExhausted(run.refusals[0])
    return run


async def _all(robots: Iterable[Coroutine[None, None, None]]) -> None:
    """Raises:  what the first robot fails with, once all are stopped."""
    try:
        async with asyncio.TaskGroup() as group:
            for robot in robots:
                group.create_task(robot)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
