"""A fleet where the server does not take every robot on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mstar_rt.errors import InvalidArgument, MstarError, ResourceExhausted
from sim_bridge import policy_fleet
from sim_bridge.instruction_tasks import TASKS
from sim_bridge.policy_episode import PolicyEpisode
from sim_bridge.policy_fleet import PolicySetting, run_setting

EPISODES = [(next(iter(TASKS)), seed) for seed in range(7)]
SETTING = PolicySetting(None, 0.0, 5, num_robots=4)


class Server:
    """Takes so many robots on at a time."""

    def __init__(self, most: int, refusal: MstarError) -> None:
        self._most, self._refusal = most, refusal
        self.num_open = self.num_asked = 0

    @contextlib.asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[Server]:
        yield self

    @contextlib.asynccontextmanager
    async def control(self, model: str, **options: Any) -> AsyncIterator[Server]:
        self.num_asked += 1
        if self.num_open == self._most:
            raise self._refusal
        self.num_open += 1
        try:
            yield self
        finally:
            self.num_open -= 1

    stats = None


def drives(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    async def drive(control: Server, episode: PolicyEpisode, pace: Any) -> None:
        while server.num_asked < SETTING.num_robots:
            await asyncio.sleep(0)
        episode.success = True

    monkeypatch.setattr(policy_fleet, "connect_async", server.connect)
    monkeypatch.setattr(policy_fleet, "drive", drive)


async def test_those_that_are_taken_on_drive_all_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(2, ResourceExhausted("the rank is full"))
    drives(monkeypatch, server)
    run = await run_setting("a:1", SETTING, EPISODES)
    assert all(episode.success for episode in run.episodes)
    assert (run.num_robots, len(run.stats)) == (2, 2)
    assert run.refusals == ["the rank is full"] * 2
    assert server.num_open == 0


@pytest.mark.parametrize("refusal", [ResourceExhausted("the rank is full"), InvalidArgument("no such model")])
async def test_not_a_single_robot_is_an_error(refusal: MstarError, monkeypatch: pytest.MonkeyPatch) -> None:
    drives(monkeypatch, Server(0, refusal))
    with pytest.raises(type(refusal), match=str(refusal)):
        await run_setting("a:1", SETTING, EPISODES)


async def test_what_is_no_lack_of_room_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    drives(monkeypatch, Server(2, InvalidArgument("no such model")))
    with pytest.raises(InvalidArgument, match="no such model"):
        await run_setting("a:1", SETTING, EPISODES)
