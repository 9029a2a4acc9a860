"""Keeps the worker process of one rank running: started, watched, killed when it hangs, started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from mstar_rt.clock import Clock
from mstar_rt.config import DeploymentConfig, WorkerConfig, config_to_plain, worker_environment
from mstar_rt.errors import FailedPrecondition, MstarError, Unavailable
from mstar_rt.lifetime import START_FAILED

logger = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 0.5
LONGEST_RESTART_DELAY_S = 30.0
GOOD_LIFE_S = 60.0
"""A worker that lived for so long did not die of what killed its predecessors: its successor starts soon."""

MAX_FIRST_LIVES = 3
"""So many workers of a rank may end before anything was served; then the deployment does."""

ADVICE = "raise warmup_timeout_s if that takes longer"
WHERE_TO_LOOK = "its log above says why, or the kernel's (dmesg) where it had no memory"


class Process(Protocol):
    """One life of a worker."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    async def ended(self) -> int:
        """Its exit status, once it has one."""
        ...

    def said(self) -> str:
        """What it wrote on standard output: its sentence, if it could not start. Asked once, at its end."""
        ...


class Ranks(Protocol):
    """What a supervisor asks and tells the conductor."""

    def is_ready(self, rank: int) -> bool: ...

    def worker_lost(self, rank: int, reason: str, pid: int | None = None) -> None: ...


class Supervisor:
    """One rank. `cannot_start` hears of a worker that says so, unless one of the rank was ready before, and while
    `is_starting` says that the deployment has not served yet, of the end of the MAX_FIRST_LIVES-th. After that there is
    always another one, at last every LONGEST_RESTART_DELAY_S.
    """

    def __init__(
        self,
        rank: int,
        start: Callable[[], Awaitable[Process]],
        ranks: Ranks,
        clock: Clock,
        load_timeout_s: float,
        cannot_start: Callable[[MstarError], None],
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        is_starting: Callable[[], bool] = lambda: False,
        compiles: bool = False,
    ) -> None:
        self.rank = rank
        self.process: Process | None = None
        self.stopping = False
        self._start = start
        self._ranks = ranks
        self._clock = clock
        self._load_timeout_s = load_timeout_s
        self._cannot_start = cannot_start
        self._sleep = sleep
        self._is_starting = is_starting
        self._compiles = compiles
        self._started_ns = 0
        self._next_start_ns = 0
        self._lost_for = ""
        self._was_ready = False
        self._num_lives = 0
        self._num_short = 0
        self._ended_for = ""

    async def run(self) -> None:
        """Start the worker, and again with a growing delay whenever it ends. Cancelled: kill it."""
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            self._started_ns = self._clock.now_ns()
            reason, is_final = await self._live()
            if self.stopping or is_final:
                return
            if self._lived_well():
                delay_s = FIRST_RESTART_DELAY_S
            logger.error("%s; starting it again in %.1f s", reason, delay_s)
            self._next_start_ns = self._clock.now_ns() + int(delay_s * 1e9)
            await self._sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_RESTART_DELAY_S)

    def kill(self, why: str) -> None:
        """It does not answer. Its requests fail at once, even if the kernel takes a while to end it."""
        if self.process is not None and not self._lost_for:
            self.process.kill()
            self._lost(f"the worker of rank {self.rank} was killed: {why}")

    def check_loading(self) -> None:
        """A worker that loads sends no heartbeats: it has `load_timeout_s`."""
        loading_s = (self._clock.now_ns() - self._started_ns) / 1e9
        if loading_s > self._load_timeout_s and not self._ranks.is_ready(self.rank):
            self.kill(f"it was not ready within warmup_timeout_s = {self._load_timeout_s:g}: it {self.loads}; {ADVICE}")

    @property
    def loads(self) -> str:
        """What it does before it is ready."""
        return "was still loading or compiling (compile: true)" if self._compiles else "was still loading"

    def starts_in_s(self) -> float:
        """How long until the next life begins, between two; else 0."""
        return 0.0 if self.process is not None else max(0.0, (self._next_start_ns - self._clock.now_ns()) / 1e9)

    @property
    def last_end(self) -> str:
        """Why the last life ended; "" before that."""
        return self._ended_for

    async def _live(self) -> tuple[str, bool]:
        """One life: why it ended, and whether there is to be no other."""
        self._lost_for = ""
        self._num_lives += 1
        try:
            process = self.process = await self._start()
        except OSError as error:
            return self._over(f"the worker of rank {self.rank} cannot be started: {error.strerror or error}")
        try:
            status = await process.ended()
        except asyncio.CancelledError:
            process.kill()
            await process.ended()
            raise
        said = process.said()
        if status == START_FAILED and said:
            return self._over(said, says_so=True)
        return self._over(f"the worker of rank {self.rank} ended with status {_named(status)}", status == START_FAILED)

    def _over(self, reason: str, says_so: bool = False) -> tuple[str, bool]:
        """A life is over. `says_so`: the worker knows that it cannot start."""
        self._was_ready = self._was_ready or self._ranks.is_ready(self.rank)
        self._num_short = 0 if self._lived_well() else self._num_short + 1
        self._ended_for = reason = (self._lost_for or reason) + self._repeated()
        if not self.stopping and not self._lost_for:
            self._lost(reason)
        self.process = None
        if self.stopping:
            return reason, False
        if says_so and not self._was_ready:
            self._cannot_start(FailedPrecondition(reason))
            return reason, True
        if self._num_lives >= MAX_FIRST_LIVES and (self._is_starting() or not self._was_ready):
            self._cannot_start(FailedPrecondition(f"{reason}, and nothing was served yet: {WHERE_TO_LOOK}"))
            return reason, True
        return reason, False

    def _lived_well(self) -> bool:
        return self._clock.now_ns() - self._started_ns >= GOOD_LIFE_S * 1e9

    def _repeated(self) -> str:
        return f" ({self._num_short} in a row, each within {GOOD_LIFE_S:g} s)" if self._num_short >= 3 else ""

    def _lost(self, reason: str) -> None:
        self._lost_for = reason
        self._was_ready = self._was_ready or self._ranks.is_ready(self.rank)
        self._ranks.worker_lost(self.rank, reason, self.process.pid if self.process is not None else None)


def _named(status: int) -> str:
    """-9 (SIGKILL)"""
    with contextlib.suppress(ValueError):
        return f"{status} ({signal.Signals(-status).name})"
    return str(status)


def out_of_time(timeout_s: float, supervisors: Collection[Supervisor], ranks: Ranks) -> Unavailable:
    """What a start ends with that takes too long: which worker is to blame, and what to change."""
    said = [each.last_end for each in supervisors if each.last_end]
    if not said:
        said = [f"rank {each.rank} {each.loads}" for each in supervisors if not ranks.is_ready(each.rank)]
        said = [*(said or ["the models were still warming up"]), ADVICE]
    return Unavailable(f"the workers were not ready within warmup_timeout_s = {timeout_s:g}: {'; '.join(said)}")


class WorkerProcess:
    """See `Process`. Standard output goes to a file: waiting must not wait for whoever inherited a pipe."""

    def __init__(self, process: asyncio.subprocess.Process, output: BinaryIO) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        return await self._process.wait()

    def said(self) -> str:
        with self._output as output:
            output.seek(0)
            return output.read().decode(errors="replace").strip()


async def start_worker(
    config: DeploymentConfig, worker: WorkerConfig, directory: Path, models: tuple[str, ...]
) -> WorkerProcess:
    """Raises:  OSError: the system has no room for another process."""
    output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the worker has ended
    with tempfile.TemporaryFile() as given:  # no pipe: a worker that ends before it has read it would break it
        given.write(json.dumps(config_to_plain(config)).encode())
        given.seek(0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "mstar_rt.worker",  # -P: no module of the folder that we stand in
            "--rank", str(worker.rank), "--deployment", str(directory),
            "--models", ",".join(models), "--parent", str(os.getpid()),
            stdin=given, stdout=output,
            env=worker_environment(worker.threads),
            process_group=0,  # Ctrl-C is for this process, which then asks the workers to stop
        )  # fmt: skip
    return WorkerProcess(process, output)
