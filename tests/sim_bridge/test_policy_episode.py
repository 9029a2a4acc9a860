"""One robot's loop: its rhythm, what it does without an action, and what it keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from mstar_rt.client.control.action_queue import RobotAction
from mstar_rt.client.control.results import ActionChunk
from mstar_rt.client.results import Timing
from sim_bridge.instruction_tasks import CORNER_XY, EPISODE_TICKS
from sim_bridge.policy_episode import PolicyEpisode, drive
from sim_bridge.tabletop_servo import CONTROL_HZ

TIMING = Timing(0.0, 0.0, {}, {}, 0.0, 0.0, 0.0)
SEED = 20_001


class FakeClock:
    def __init__(self) -> None:
        self.time_s = 100.0
        self.woken_s: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    async def sleep_until(self, when_s: float) -> None:
        self.time_s = max(self.time_s, when_s)
        self.woken_s.append(self.time_s)


class FakeSession:
    """Targets on the straight way to the corner, after `num_holds` ticks without any; a chunk every four ticks."""

    def __init__(self, clock: FakeClock, num_holds: int, tick_takes_s: float = 0.0, goes: bool = True) -> None:
        self._clock = clock
        self._num_holds = num_holds
        self._tick_takes_s = tick_takes_s
        self._goes = goes
        self.num_ticks = 0
        self.states: list[np.ndarray] = []
        self.told: tuple[str | None, int | None] | None = None

    async def reset(self, instruction: str | None = None, *, seed: int | None = None) -> None:
        self.told = instruction, seed

    async def act(self, images: Any, state: Any = None) -> RobotAction:
        assert {name: image.shape for name, image in images.items()} == {"top": (64, 64, 3), "wrist": (64, 64, 3)}
        self.states.append(np.array(state))
        self.num_ticks += 1
        self._clock.time_s += self._tick_takes_s
        if self.num_ticks <= self._num_holds or not self._goes:
            return RobotAction("hold", None)
        step = np.asarray(CORNER_XY) - state
        target = state + step * min(1.0, 0.01 / max(1e-9, float(np.hypot(*step))))
        return RobotAction("chunk", target.astype(np.float32), self.num_ticks // 4, 0, 0.1)

    def latest(self) -> ActionChunk | None:
        if self.num_ticks <= self._num_holds:
            return None
        return ActionChunk(
            self.num_ticks // 4, 1, np.zeros((16, 2), np.float32), 0, 1, 5, 0.03, None, TIMING, "", ()
        )  # fmt: skip


def _run(session: FakeSession, clock: FakeClock, task: str = "corner") -> PolicyEpisode:
    episode = PolicyEpisode(task, SEED)
    asyncio.run(drive(session, episode, clock))
    return episode


def test_an_episode_is_driven_at_the_control_rate_until_it_succeeds() -> None:
    clock = FakeClock()
    session = FakeSession(clock, num_holds=3)
    episode = _run(session, clock)
    assert episode.success
    assert session.told == ("move to the upper left corner", SEED)
    assert len(episode.ticks) == session.num_ticks < EPISODE_TICKS
    np.testing.assert_allclose(np.diff(clock.woken_s), 1 / CONTROL_HZ)
    assert [chunk.seq for chunk in episode.chunks] == sorted({chunk.seq for chunk in episode.chunks})
    assert len(episode.chunks) > 3


def test_without_an_action_the_robot_stays_where_it_is() -> None:
    clock = FakeClock()
    session = FakeSession(clock, num_holds=0, goes=False)
    episode = _run(session, clock)
    assert not episode.success
    assert len(episode.ticks) == EPISODE_TICKS
    np.testing.assert_allclose(session.states[-1], session.states[0], atol=1e-3)


def test_ticks_that_are_missed_are_not_made_up_for() -> None:
    clock = FakeClock()
    episode = _run(FakeSession(clock, num_holds=0, tick_takes_s=0.12), clock)
    late_s = [tick.late_s for tick in episode.ticks]
    np.testing.assert_allclose(late_s[:4], [0.0, 0.02, 0.04, 0.01], atol=1e-6)
    assert max(late_s) < 1 / CONTROL_HZ
