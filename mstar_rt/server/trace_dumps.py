"""A trace of all processes for a control tick that missed its deadline.

Nothing of it is done while anyone waits: the rings are asked for after a pause, in which the late chunk is sent, and
another process with no priority writes the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from mstar_rt.clock import Clock
from mstar_rt.errors import FailedPrecondition

LAST_S = 3.0
"""What a file holds, up to the missed tick and PAUSE_S after it."""
PAUSE_S = 0.2
LEAST_PERIOD_S = 10.0
MAX_FILES = 20
_NAME = re.compile(r"missed-\d{6,}-[\w-]+\.json")

_log = logging.getLogger(__name__)

CollectTraces = Callable[[float], Awaitable[tuple[dict[str, bytes], list[str]]]]


def check_trace_folder(folder: Path) -> None:
    """Whether `folder` is, or could be made, what files can be written to. It is tried, and nothing of that is left.

    Raises:  FailedPrecondition.
    """
    present = folder
    while not os.path.lexists(present) and present != present.parent:
        present = present.parent
    if not present.is_dir():
        raise _unusable(folder, f"{present} is no folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise _unusable(folder, f"this user may not write to {present}")
    try:
        if present == folder:
            _try_file(folder)
        else:  # permissions do not tell of a file system that takes no folders, as /proc
            os.rmdir(tempfile.mkdtemp(prefix=".mstar-rt-", dir=present))
    except OSError as error:
        raise _unusable(folder, f"nothing can be made in {present}: {error.strerror or error}") from error


def make_trace_folder(folder: Path) -> None:
    """Raises:  FailedPrecondition: it cannot be made, or nothing can be written to it."""
    check_trace_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _try_file(folder)
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error


def _try_file(folder: Path) -> None:
    """Raises:  OSError: none can be written there."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"[]")


def _unusable(folder: Path, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"server.trace_dir: no traces can be written to {folder}: {why}; name another folder, or take trace_dir out"
    )


class TraceDumps:
    """At most one file in LEAST_PERIOD_S; `folder` keeps the newest MAX_FILES."""

    def __init__(self, folder: Path, collect: CollectTraces, clock: Clock, pause_s: float = PAUSE_S) -> None:
        self._folder = folder
        self._collect = collect
        self._clock = clock
        self._pause_s = pause_s
        self._next_ns = 0
        self._dumping: asyncio.Task[None] | None = None
        self._num_missed = 0
        """Since the last line in the log."""
        self.num_written = 0

    def missed(self, request_id: str) -> None:
        self._num_missed += 1
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns or (self._dumping is not None and not self._dumping.done()):
            return
        self._next_ns = now_ns + int(LEAST_PERIOD_S * 1e9)
        self._dumping = asyncio.create_task(self._dump(request_id))

    async def written(self) -> None:
        """Return once what was begun is done."""
        if self._dumping is not None:
            await asyncio.wait([self._dumping])

    async def stop(self) -> None:
        if self._dumping is not None:
            self._dumping.cancel()
            await asyncio.gather(self._dumping, return_exceptions=True)

    async def _dump(self, request_id: str) -> None:
        try:
            await asyncio.sleep(self._pause_s)
            rows, silent = await self._collect(LAST_S)
            if silent:
                _log.warning("the trace of tick %s is without %s", request_id, ", ".join(silent))
            path = await asyncio.to_thread(self._next_path, request_id)
            await _write(path, rows)
            self.num_written += 1
            _log.warning(
                "%d control tick(s) missed their deadlines since the last such line; %s has what all did (%s)",
                self._num_missed, path, request_id,
            )  # fmt: skip
            self._num_missed = 0
        except OSError as error:
            _log.error("the trace of tick %s could not be written: %s", request_id, error)

    def _next_path(self, request_id: str) -> Path:
        """Numbered in the order of time; makes room for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ours = sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        for name in ours[: max(0, len(ours) - MAX_FILES + 1)]:
            (self._folder / name).unlink(missing_ok=True)
        number = int(ours[-1].split("-")[1]) + 1 if ours else 1
        return self._folder / f"missed-{number:06d}-{request_id}.json"


async def _write(path: Path, rows: Mapping[str, bytes]) -> None:
    """Raises:  OSError."""
    data = b"{" + b",".join(b'"%s":%s' % (process.encode(), encoded) for process, encoded in rows.items()) + b"}"
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mstar_rt.trace_file", str(path),
        stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        _, said = await writer.communicate(data)
    except BaseException:
        writer.kill()
        raise
    if writer.returncode != 0:
        raise OSError(
            f"the writer ended with status {writer.returncode}: {said.decode(errors='replace').strip()[-300:]}"
        )
