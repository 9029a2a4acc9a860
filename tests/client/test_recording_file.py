"""The file of a recording: what is written is read, whatever became of its writer."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from mstar_rt.client.recording import file_format, writer
from mstar_rt.client.recording.file_format import RecordingReader
from mstar_rt.client.recording.writer import Recording, RecordingWriter, recording_of
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.recording_pb2 import RecordingFrame


def frame(number: int, size: int = 0) -> RecordingFrame:
    instruction = wire.SetInstruction(instruction="x" * size)
    return RecordingFrame(time_ns=number, request=wire.ControlRequest(set_instruction=instruction))


def write(path: Path, *frames: RecordingFrame, max_bytes: int = writer.MAX_BYTES) -> RecordingWriter:
    recorder = RecordingWriter(Recording(path, max_bytes))
    for each in frames:
        recorder.put(each)
    recorder.close()
    return recorder


def read(path: Path) -> tuple[list[RecordingFrame], int]:
    with open(path, "rb") as file:
        reader = RecordingReader(file)
        frames = [each for _, each in reader]
        return frames, reader.torn_bytes


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    frames = [frame(0), frame(1, 300), frame(2, 100_000)]
    assert write(path, *frames).ended == ""
    assert read(path) == (frames, 0)
    with open(path, "rb") as file:
        reader = RecordingReader(file)
        offsets = [offset for offset, _ in reader]
        assert [reader.at(offset) for offset in reversed(offsets)] == frames[::-1]


def test_a_file_that_is_cut_anywhere_has_its_whole_frames(tmp_path: Path) -> None:
    path, cut = tmp_path / "r", tmp_path / "cut"
    frames = [frame(1, 5), frame(2, 9)]
    write(path, *frames)
    data = path.read_bytes()
    ends = [len(file_format.START)]
    for each in frames:
        ends.append(ends[-1] + len(file_format.encoded(each)))
    assert ends[-1] == len(data)
    for length in range(ends[0], len(data) + 1):
        cut.write_bytes(data[:length])
        num_whole = sum(end <= length for end in ends[1:])
        assert read(cut) == (frames[:num_whole], length - ends[num_whole])


def test_a_session_goes_behind_the_last_whole_frame(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, frame(1), frame(2, 50))
    for torn in (lambda data: data[:-3], lambda data: data[:-1] + bytes([data[-1] ^ 1])):
        whole = path.read_bytes()
        path.write_bytes(torn(whole))
        write(path, frame(3))
        assert read(path) == ([frame(1), frame(3)], 0)
        write(path, frame(4))
        assert read(path) == ([frame(1), frame(3), frame(4)], 0)
        path.write_bytes(whole)


def test_a_damaged_frame_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, frame(1), frame(2, 50), frame(3))
    data = bytearray(path.read_bytes())
    data[-len(file_format.encoded(frame(3))) - 4] ^= 1
    path.write_bytes(data)
    frames, torn = read(path)
    assert frames == [frame(1)]
    assert torn == len(file_format.encoded(frame(2, 50))) + len(file_format.encoded(frame(3)))


def test_whatever_is_in_a_file_is_frames_or_the_end(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, *(frame(number, 20 * number) for number in range(4)))
    whole, start = path.read_bytes(), len(file_format.START)
    rng = np.random.default_rng(3)
    for number in range(2000):
        data = bytearray(whole)
        for place in rng.integers(start, len(data), 1 + number % 3):
            data[place] = rng.integers(256)
        if number % 2:  # the CRC fits, what it is of is noise
            length = int(rng.integers(1, 40))
            noise = rng.bytes(length)
            data[start:] = struct.pack("<II", length, zlib.crc32(noise)) + noise
        reader = RecordingReader(io.BytesIO(data))
        assert len(list(reader)) <= 4
        assert 0 <= reader.torn_bytes < len(data)


def test_the_file_does_not_become_longer_than_asked(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = write(path, *(frame(number, 1000) for number in range(9)), frame(9), max_bytes=5000)
    frames, _ = read(path)
    assert path.stat().st_size <= 5000
    assert [each.time_ns for each in frames[:-1]] == [0, 1, 2, 3], "nothing behind what did not fit"
    assert frames[-1].end.reason == recorder.ended
    assert "max_bytes, 5000" in recorder.ended


def test_a_slow_disk_ends_the_recording_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_UNWRITTEN_BYTES", 3000)
    monkeypatch.setattr(writer.threading.Thread, "start", lambda thread: None)
    recorder = RecordingWriter(Recording(tmp_path / "r"))
    for number in range(5):
        recorder.put(frame(number, 1000))
    assert "the disk is slower than the robot" in recorder.ended
    monkeypatch.undo()
    recorder._writing.start()
    recorder.close()
    frames, _ = read(tmp_path / "r")
    assert [each.time_ns for each in frames[:-1]] == [0, 1]
    assert frames[-1].end.reason == recorder.ended


def test_a_full_disk_leaves_whole_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    original = writer._write_all

    def full(file: object, data: bytes) -> None:
        if len(data) > 1000:
            original(file, data[:100])  # type: ignore[arg-type]
            raise OSError(28, "No space left on device")
        original(file, data)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "_write_all", full)
    recorder = write(path, frame(0), frame(1, 2000), frame(2))
    assert recorder.ended.endswith("No space left on device")
    assert read(path) == ([frame(0)], 0)


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"something else, of some length")
    with pytest.raises(FailedPrecondition, match="is no recording"):
        RecordingWriter(Recording(path))
    assert path.read_bytes().startswith(b"something else")
    path.write_bytes(file_format.START[:8] + b"\x02\0\0\0")
    with pytest.raises(FailedPrecondition, match="version 2, expected 1"):
        RecordingWriter(Recording(path))
    with pytest.raises(FailedPrecondition, match="cannot be written: No such file"):
        RecordingWriter(Recording(tmp_path / "none" / "r"))
    recorder = RecordingWriter(Recording(tmp_path / "mine"))
    with pytest.raises(FailedPrecondition, match="written by another session"):
        RecordingWriter(Recording(tmp_path / "mine"))
    recorder.close()
    with pytest.raises(InvalidArgument, match="max_bytes is 10"):
        Recording(path, max_bytes=10)
    with pytest.raises(InvalidArgument, match="expected a path, a Recording, or None"):
        recording_of(3)
