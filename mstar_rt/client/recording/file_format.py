"""The file of a recording: see protos/mstar/v1/recording.proto."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import DecodeError

from mstar_rt.errors import FailedPrecondition
from mstar_rt.protos.recording_pb2 import RecordingFrame

VERSION = 1
_MAGIC = b"mstarrec"
_START = struct.Struct("<8sI")
_FRAME = struct.Struct("<II")

START = _START.pack(_MAGIC, VERSION)
FRAME_BYTES = _FRAME.size
"""What a frame takes besides its message."""


def encoded(frame: RecordingFrame) -> bytes:
    message = frame.SerializeToString()
    return _FRAME.pack(len(message), zlib.crc32(message)) + message


class RecordingReader:
    """The frames of an open file, with the offset of each.

    `end` is that of the last whole frame that was read, `torn_bytes` what lies behind the last one of the file: its
    recorder died while it wrote that.

    Raises:  FailedPrecondition: it is no recording, or of another version.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        check_start(file)
        self.end = _START.size
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[tuple[int, RecordingFrame]]:
        self.end, self.torn_bytes = _START.size, 0
        while self.end < self._size:
            offset = self.end
            found = self._frame(offset)
            if found is None:
                self.torn_bytes = self._size - offset
                return
            frame, self.end = found
            yield offset, frame

    def at(self, offset: int) -> RecordingFrame:
        """The frame that was found there."""
        found = self._frame(offset)
        assert found is not None, f"there is a whole frame at {offset}"
        return found[0]

    def _frame(self, offset: int) -> tuple[RecordingFrame, int] | None:
        """And the offset behind it. None: it is cut short, damaged, or no frame."""
        self._file.seek(offset)
        head = self._file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        length, crc = _FRAME.unpack(head)
        if length > self._size - offset - _FRAME.size:
            return None
        message = self._file.read(length)
        if len(message) < length or zlib.crc32(message) != crc:
            return None
        try:
            return RecordingFrame.FromString(message), offset + _FRAME.size + length
        except DecodeError:
            return None


def check_start(file: BinaryIO) -> None:
    """Leaves the file at its first frame.

    Raises:  FailedPrecondition: it is no recording, or of another version.
    """
    file.seek(0)
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise FailedPrecondition(f"{file.name} is no recording of a control session")
    _, version = _START.unpack(start)
    if version != VERSION:
        raise FailedPrecondition(
            f"{file.name} is a recording of version {version}, expected {VERSION}: use the mstar-rt that has written it"
        )


def find_end(file: BinaryIO) -> int:
    """The offset behind the last whole frame, by the lengths of the frames; only the last one is read.

    Raises:  FailedPrecondition: it is no recording, or of another version.
    """
    check_start(file)
    size = file.seek(0, os.SEEK_END)
    last = offset = _START.size
    while offset + _FRAME.size <= size:
        file.seek(offset)
        length, _ = _FRAME.unpack(file.read(_FRAME.size))
        if offset + _FRAME.size + length > size:
            break
        last, offset = offset, offset + _FRAME.size + length
    if offset > last:
        file.seek(last)
        length, crc = _FRAME.unpack(file.read(_FRAME.size))
        if zlib.crc32(file.read(length)) != crc:
            return last
    return offset
