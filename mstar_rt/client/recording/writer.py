"""`RecordingWriter`: frames into a file, by a thread of its own, so that a slow disk never holds up a robot."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mstar_rt.client import arguments
from mstar_rt.client.recording.file_format import FRAME_BYTES, START, encoded, find_end
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos.recording_pb2 import RecordingEnd, RecordingFrame

MAX_BYTES = 4 << 30
MAX_UNWRITTEN_BYTES = 64 << 20
"""What may wait for the disk, in memory."""
CLOSE_TIMEOUT_S = 10.0
_LEAST_BYTES = 4096
"""Room for a header, and for why a recording ends."""
_END_BYTES = 512


@dataclass(frozen=True)
class Recording:
    """Where a session is recorded, and how long that file may become."""

    path: str | os.PathLike[str]
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if arguments.whole_from_0("max_bytes", self.max_bytes) < _LEAST_BYTES:
            raise InvalidArgument(f"max_bytes is {self.max_bytes}, expected at least {_LEAST_BYTES}")


def recording_of(record: object) -> Recording | None:
    """Raises:  InvalidArgument: neither a path nor a Recording nor None."""
    if record is None or isinstance(record, Recording):
        return record
    if isinstance(record, str | os.PathLike):
        return Recording(record)
    raise InvalidArgument(f"record is {record!r}, expected a path, a Recording, or None")


class RecordingWriter:
    """`put` waits for nothing. The recording ends early where the file would become too long, the disk is full or too
    slow: `ended` says why, and so does the file if it can. What lies in the file is whole up to a crash of the process,
    as of some moments before.

    Raises:  FailedPrecondition: the file cannot be written, is something else, or is in use by another session.
    """

    def __init__(self, recording: Recording) -> None:
        self.ended = ""
        self._max_bytes = recording.max_bytes
        self._file, self._num_bytes = _open(Path(recording.path), recording.max_bytes)
        self._frames: queue.SimpleQueue[RecordingFrame | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next one
        self._unwritten_bytes = 0
        self._closed = self._is_full = False
        self._writing = threading.Thread(target=self._run, name="mstar-recording", daemon=True)
        self._writing.start()

    def put(self, frame: RecordingFrame) -> None:
        """The caller does not change `frame` any more."""
        if self.ended or self._closed:
            return
        size = frame.ByteSize() + FRAME_BYTES
        with self._lock:
            if self._unwritten_bytes + size > MAX_UNWRITTEN_BYTES:
                self.ended = f"the disk is slower than the robot: {self._unwritten_bytes} bytes wait for it"
                frame = _end(self.ended)
                size = frame.ByteSize() + FRAME_BYTES
            self._unwritten_bytes += size
        self._frames.put(frame)

    def close(self) -> None:
        """All that was put is in the file, if the disk takes it within CLOSE_TIMEOUT_S. Idempotent."""
        self._closed = True
        self._frames.put(None)
        self._writing.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        with self._file:
            while not self._is_full and (frame := self._frames.get()) is not None:
                self._write(frame)

    def _write(self, frame: RecordingFrame) -> None:
        data = encoded(frame)
        with self._lock:
            self._unwritten_bytes -= len(data)
        is_end = frame.HasField("end")
        if not is_end and self._num_bytes + len(data) + _END_BYTES > self._max_bytes:
            self.ended = f"the file would become longer than max_bytes, {self._max_bytes}"
            is_end, data = True, encoded(_end(self.ended))
        self._is_full = is_end
        try:
            _write_all(self._file, data)
            self._num_bytes += len(data)
        except OSError as error:
            self.ended = f"{self._file.name} cannot be written: {error.strerror}"
            self._is_full = True
            with contextlib.suppress(OSError):
                self._file.truncate(self._num_bytes)


def _end(reason: str) -> RecordingFrame:
    return RecordingFrame(end=RecordingEnd(reason=reason))


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _open(path: Path, max_bytes: int) -> tuple[BinaryIO, int]:
    """Unbuffered, so that what is written outlives this process; behind the last whole frame if there is one."""
    try:
        file = open(path, "r+b" if path.exists() else "x+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise FailedPrecondition(f"the recording {path} cannot be written: {error.strerror}") from error
    try:
        _lock(file)
        if os.fstat(file.fileno()).st_size == 0:
            file.write(START)
        end = find_end(file)
        if end + _LEAST_BYTES > max_bytes:
            raise FailedPrecondition(f"the recording {path} has {end} bytes, at most {max_bytes} are allowed")
        file.truncate(end)
        file.seek(end)
    except BaseException:
        file.close()
        raise
    return file, end


def _lock(file: BinaryIO) -> None:
    """Against another session that records into the same file. The system takes the lock away with the process."""
    try:
        import fcntl  # which other systems may lack
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise FailedPrecondition(f"{file.name} is being written by another session: give each a file") from None
