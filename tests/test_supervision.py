"""One rank's process, played by a fake: restarts with a growing delay, kills what hangs, tells the conductor once."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mstar_rt import supervision
from mstar_rt.clock import ManualClock
from mstar_rt.config import parse_deployment
from mstar_rt.errors import FailedPrecondition, MstarError
from mstar_rt.lifetime import START_FAILED
from mstar_rt.supervision import Supervisor, out_of_time, start_worker

LOAD_TIMEOUT_S = 300.0


class FakeProcess:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.num_kills = 0
        self.output = ""
        self.dies_when_killed = True
        self._ended = asyncio.Event()
        self.status = 0

    def end(self, status: int, output: str = "") -> None:
        self.status, self.output = status, output
        self._ended.set()

    def kill(self) -> None:
        self.num_kills += 1
        if self.dies_when_killed:
            self.end(-9)

    async def ended(self) -> int:
        await self._ended.wait()
        return self.status

    def said(self) -> str:
        return self.output


class Rig:
    """A supervisor of rank 3 with everything around it; also what it says to the conductor."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lives: list[FakeProcess] = []
        self.lost: list[tuple[int, str, int | None]] = []
        self.ready = False
        self.no_room = False
        self.slept_s: list[float] = []
        self.final: list[MstarError] = []
        self.is_starting = False
        self.supervisor = Supervisor(
            3, self.start, self, self.clock, LOAD_TIMEOUT_S, self.final.append, self.sleep, lambda: self.is_starting
        )
        self.running = asyncio.create_task(self.supervisor.run())

    async def start(self) -> FakeProcess:
        if self.no_room:
            self.no_room = False
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.lives.append(FakeProcess(100 + len(self.lives)))
        return self.lives[-1]

    async def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        self.clock.advance_ns(int(delay_s * 1e9))

    def is_ready(self, rank: int) -> bool:
        assert rank == 3
        return self.ready

    def worker_lost(self, rank: int, reason: str, pid: int | None = None) -> None:
        self.ready = False
        self.lost.append((rank, reason, pid))

    async def live(self, seconds: float, status: int, output: str = "") -> None:
        """The newest life ends after so long."""
        await settle()
        self.clock.advance_ns(int(seconds * 1e9))
        self.lives[-1].end(status, output)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.running.cancel()
    await asyncio.gather(rig.running, return_exceptions=True)


async def test_it_is_started_again_after_growing_delays(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.ready = True
    for _ in range(8):
        await rig.live(1.0, -9)
    assert rig.slept_s == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [pid for _, _, pid in rig.lost] == list(range(100, 108))
    reasons = [reason for _, reason, _ in rig.lost]
    once = "the worker of rank 3 ended with status -9 (SIGKILL)"
    assert reasons[:3] == [once, once, f"{once} (3 in a row, each within 60 s)"]
    assert reasons[-1] == rig.supervisor.last_end == f"{once} (8 in a row, each within 60 s)"
    assert caplog.messages[-1] == f"{reasons[-1]}; starting it again in 30.0 s"
    assert not rig.final


async def test_how_long_until_the_next_life_is_known_between_two(rig: Rig) -> None:
    seen_s: list[float] = []

    async def sleep(delay_s: float) -> None:
        rig.clock.advance_ns(10**8)
        seen_s.append(rig.supervisor.starts_in_s())
        rig.clock.advance_ns(int(delay_s * 1e9) - 10**8)

    rig.supervisor._sleep, rig.ready = sleep, True
    for _ in range(3):
        assert rig.supervisor.starts_in_s() == 0
        await rig.live(1.0, -9)
    assert seen_s == pytest.approx([0.4, 0.9, 1.9])
    assert rig.supervisor.starts_in_s() == 0


async def test_a_minute_of_life_makes_the_delay_short_again(rig: Rig) -> None:
    rig.ready = True
    for seconds in (1, 1, 59, 60, 1):
        await rig.live(seconds, -11)
    assert rig.slept_s == [0.5, 1, 2, 0.5, 1]
    assert rig.lost[-1][1] == "the worker of rank 3 ended with status -11 (SIGSEGV)", "the row was broken"


@pytest.mark.parametrize("seconds", [1.0, 90.0])
async def test_workers_that_all_end_before_one_was_ready_end_the_deployment(rig: Rig, seconds: float) -> None:
    await rig.live(seconds, 1)
    await rig.live(seconds, 1)
    assert not rig.final
    assert not rig.running.done()
    await rig.live(seconds, -9)
    (error,) = rig.final
    assert isinstance(error, FailedPrecondition)
    assert str(error).startswith("the worker of rank 3 ended with status -9 (SIGKILL)")
    assert "nothing was served yet: its log above says why" in str(error)
    assert rig.running.done()
    assert len(rig.lives) == 3


async def test_so_do_those_that_were_ready_and_died_of_their_first_requests(rig: Rig) -> None:
    rig.is_starting = True
    for _ in range(3):
        assert not rig.final
        rig.ready = True
        await rig.live(1.0, -11)
    (error,) = rig.final
    assert "ended with status -11 (SIGSEGV) (3 in a row, each within 60 s), and nothing was served yet" in str(error)


async def test_the_status_of_one_that_cannot_start_ends_the_deployment_also_without_a_sentence(rig: Rig) -> None:
    await rig.live(1.0, START_FAILED)
    assert [str(error) for error in rig.final] == ["the worker of rank 3 ended with status 3"]
    assert len(rig.lives) == 1


async def test_a_worker_that_cannot_start_ends_the_deployment_with_its_sentence(rig: Rig) -> None:
    await rig.live(1.0, START_FAILED, "no weights file at /nowhere; check the path")
    (error,) = rig.final
    assert isinstance(error, FailedPrecondition)
    assert str(error) == "no weights file at /nowhere; check the path"
    assert rig.running.done()
    assert len(rig.lives) == 1


async def test_one_that_could_start_before_is_tried_again(rig: Rig) -> None:
    rig.ready = True
    await rig.live(5.0, -9)
    await rig.live(1.0, START_FAILED, "the device has no memory")
    await rig.live(1.0, START_FAILED, "the device has no memory")
    assert not rig.final
    said = "the device has no memory"
    assert [reason for _, reason, _ in rig.lost][1:] == [said, f"{said} (3 in a row, each within 60 s)"]
    assert len(rig.lives) == 4


async def test_a_hanging_worker_is_killed_and_its_requests_fail_before_it_is_dead(rig: Rig) -> None:
    await settle()
    rig.ready = True
    rig.lives[0].dies_when_killed = False
    rig.supervisor.kill("a step of node 'vit' took over 60 s")
    rig.supervisor.kill("a step of node 'vit' took over 60 s")
    assert rig.lives[0].num_kills == 1
    assert rig.lost == [(3, "the worker of rank 3 was killed: a step of node 'vit' took over 60 s", 100)]
    await rig.live(20.0, -9)
    assert len(rig.lost) == 1, "the conductor hears of each life's end once"
    assert len(rig.lives) == 2
    assert "was killed: a step of node 'vit' took over 60 s" in rig.supervisor.last_end, "not: ended with status -9"


async def test_killing_between_two_lives_does_nothing(rig: Rig) -> None:
    await rig.live(1.0, -9)
    rig.supervisor.process = None
    rig.supervisor.kill("it was silent")
    assert len(rig.lost) == 1


async def test_a_worker_that_loads_for_too_long_is_killed(rig: Rig) -> None:
    await settle()
    rig.clock.advance_ns(int(LOAD_TIMEOUT_S * 1e9))
    rig.supervisor.check_loading()
    assert not rig.lost
    rig.clock.advance_ns(1)
    rig.supervisor.check_loading()
    sentence = (
        "the worker of rank 3 was killed: it was not ready within warmup_timeout_s = 300: it was still loading; raise "
        "warmup_timeout_s if that takes longer"
    )
    assert rig.lost == [(3, sentence, 100)]
    await settle()
    rig.ready = True
    rig.clock.advance_ns(int(2 * LOAD_TIMEOUT_S * 1e9))
    rig.supervisor.check_loading()
    assert len(rig.lost) == 1


async def test_a_start_that_takes_too_long_says_which_worker_did_what_and_what_to_change(rig: Rig) -> None:
    compiling = Supervisor(3, rig.start, rig, rig.clock, LOAD_TIMEOUT_S, rig.final.append, compiles=True)
    begin, advice = "the workers were not ready within warmup_timeout_s = 300: ", "; raise warmup_timeout_s if"
    assert str(out_of_time(300, [rig.supervisor], rig)).startswith(f"{begin}rank 3 was still loading{advice}")
    said = str(out_of_time(300, [compiling], rig))
    assert said.startswith(f"{begin}rank 3 was still loading or compiling (compile: true){advice}")
    rig.ready = True
    said = str(out_of_time(300, [rig.supervisor], rig))
    assert said.startswith(f"{begin}the models were still warming up{advice}")
    await rig.live(1.0, -9)
    assert str(out_of_time(300, [rig.supervisor], rig)) == f"{begin}the worker of rank 3 ended with status -9 (SIGKILL)"


async def test_no_room_for_a_process_is_tried_again(rig: Rig) -> None:
    rig.no_room = True
    await rig.live(1.0, -9)
    assert rig.lost[1:] == [(3, "the worker of rank 3 cannot be started: Resource temporarily unavailable", None)]
    assert rig.slept_s == [0.5, 1]
    assert len(rig.lives) == 2


async def test_stopping_starts_nothing_and_says_nothing(rig: Rig) -> None:
    await settle()
    rig.supervisor.stopping = True
    await rig.live(1.0, 0)
    assert rig.running.done()
    assert not rig.lost


async def test_cancelling_kills(rig: Rig) -> None:
    await settle()
    rig.running.cancel()
    await settle()
    assert rig.lives[0].num_kills == 1
    assert rig.running.cancelled()


async def test_a_process_is_over_when_it_ends_whoever_still_holds_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A grandchild that lives on (a compiler's, a data loader's) must not hide the death of the worker."""
    script = tmp_path / "worker"
    script.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nsys.stdin.read()\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(f'no weights {child.pid}', flush=True)\nsys.exit(3)\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(supervision.sys, "executable", str(script))
    config = parse_deployment({"name": "test", "models": [{"name": "toy", "family": "toy"}]})
    process = await start_worker(config, config.workers[0], tmp_path, ("toy",))
    async with asyncio.timeout(20):
        assert await process.ended() == START_FAILED
    sentence, child = process.said().rsplit(" ", 1)
    assert sentence == "no weights"
    supervision.os.kill(int(child), 9)
