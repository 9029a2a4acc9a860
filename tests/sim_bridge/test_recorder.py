"""The recorder writes files that a reader can open."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mstar_rt.errors import InvalidArgument
from sim_bridge.recorder import VideoRecorder, plot_latencies, tile


def _recorder(num_frames: int = 8) -> VideoRecorder:
    recorder = VideoRecorder(frames_per_second=4)
    for index in range(num_frames):
        frame = np.zeros((64, 96, 3), np.uint8)
        frame[:, : 10 * (index + 1)] = (255, 0, 0)
        recorder.add(frame)
    return recorder


def test_video_can_be_read_back(tmp_path: Path) -> None:
    path = _recorder().save(tmp_path / "deep" / "run.mp4")
    assert path.exists()
    capture = cv2.VideoCapture(str(path))
    frames = []
    while True:
        ok, frame = capture.read()
        if not ok:
            break
        frames.append(frame)
    assert len(frames) == 8
    assert frames[-1].shape == (64, 96, 3)
    blue, _, red = frames[-1][32, 20].astype(int)
    assert red > 180
    assert blue < 80


def test_gif_where_mp4_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def __init__(self, *arguments: object) -> None: ...

        def isOpened(self) -> bool:  # noqa: N802  (OpenCV's name)
            return False

    monkeypatch.setattr(cv2, "VideoWriter", type("VideoWriter", (Closed,), {"fourcc": staticmethod(lambda *c: 0)}))
    path = _recorder().save(tmp_path / "run.mp4")
    assert path.suffix == ".gif"
    assert not (tmp_path / "run.mp4").exists()
    with Image.open(path) as picture:
        assert picture.n_frames == 8  # type: ignore[attr-defined]
        assert picture.size == (96, 64)


def test_frames_are_copied(tmp_path: Path) -> None:
    recorder = VideoRecorder(4)
    frame = np.zeros((16, 16, 3), np.uint8)
    recorder.add(frame)
    frame[:] = 255
    recorder.add(frame)
    assert not np.array_equal(*recorder._frames)


def test_bad_frames_are_refused(tmp_path: Path) -> None:
    recorder = _recorder(1)
    with pytest.raises(InvalidArgument, match="uint8"):
        recorder.add(np.zeros((64, 96, 3), np.float32))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="as before"):
        recorder.add(np.zeros((32, 96, 3), np.uint8))
    with pytest.raises(InvalidArgument, match="no frame"):
        VideoRecorder(4).save(tmp_path / "none.mp4")
    with pytest.raises(InvalidArgument, match="frames_per_second"):
        VideoRecorder(0)


def test_tile_places_frames_row_by_row() -> None:
    frames = [np.full((4, 6, 3), value, np.uint8) for value in (1, 2, 3)]
    canvas = tile(frames, num_columns=2)
    assert canvas.shape == (8, 12, 3)
    assert (canvas[0, 0, 0], canvas[0, 6, 0], canvas[4, 0, 0], canvas[4, 6, 0]) == (1, 2, 3, 0)


def test_tiles_keep_a_gap() -> None:
    canvas = tile([np.full((4, 6, 3), 9, np.uint8)] * 3, num_columns=2, gap_px=2)
    assert canvas.shape == (10, 14, 3)
    assert (canvas[:, 6:8] == 0).all()
    assert (canvas[4:6] == 0).all()
    assert (canvas[6:, :6] == 9).all()


def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = plot_latencies(tmp_path / "latency", {"reach": [10.0, 12.0, 11.0], "push": [20.0, 25.0]}, deadline_ms=240)
    with Image.open(path) as picture:
        assert path.suffix == ".png"
        assert picture.size[0] > 800
    with pytest.raises(InvalidArgument, match="no latency"):
        plot_latencies(tmp_path / "none.png", {"reach": []})
