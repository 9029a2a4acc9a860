"""What a run leaves for people to look at: a video of the robots and a plot of how long their plans took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mstar_rt.errors import InvalidArgument

matplotlib.use("Agg")
from matplotlib import pyplot

Frame = NDArray[np.uint8]


class VideoRecorder:
    """Collects RGB frames and writes them as MP4, or as GIF where OpenCV has no MP4 encoder.

    Frames are kept until `save`: a few hundred small pictures. `close` is not needed.
    """

    def __init__(self, frames_per_second: float) -> None:
        if not frames_per_second > 0:
            raise InvalidArgument(f"frames_per_second must be positive, got {frames_per_second}")
        self._frames_per_second = frames_per_second
        self._frames: list[Frame] = []

    def add(self, frame: Frame) -> None:
        """frame [H, W, 3] uint8 RGB, every frame of one size. Raises: InvalidArgument: another shape or dtype."""
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise InvalidArgument(f"a frame must be uint8 [H, W, 3], got {frame.dtype} {list(frame.shape)}")
        if self._frames and frame.shape != self._frames[0].shape:
            raise InvalidArgument(f"a frame must be {list(self._frames[0].shape)} as before, got {list(frame.shape)}")
        self._frames.append(frame.copy())

    def save(self, path: Path) -> Path:
        """Write `path` with the suffix .mp4, or .gif where MP4 cannot be written; returns the path that was written.

        Raises: InvalidArgument: no frame was added.
        """
        if not self._frames:
            raise InvalidArgument("there is no frame to write; call add(frame) first")
        path.parent.mkdir(parents=True, exist_ok=True)
        mp4 = path.with_suffix(".mp4")
        if self._write_mp4(mp4):
            return mp4
        mp4.unlink(missing_ok=True)
        gif = path.with_suffix(".gif")
        self._write_gif(gif)
        return gif

    def _write_mp4(self, path: Path) -> bool:
        """False if this build of OpenCV cannot; it says so by not opening, or by writing next to nothing."""
        height, width = self._frames[0].shape[:2]
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), self._frames_per_second, (width, height))
        if not writer.isOpened():
            return False
        for frame in self._frames:
            writer.write(np.ascontiguousarray(frame[..., ::-1]))
        writer.release()
        return path.exists() and path.stat().st_size > len(self._frames)

    def _write_gif(self, path: Path) -> None:
        pictures = [Image.fromarray(frame) for frame in self._frames]
        pictures[0].save(
            path,
            save_all=True,
            append_images=pictures[1:],
            loop=0,
            duration=round(1000 / self._frames_per_second),
        )


def tile(frames: Sequence[Frame], num_columns: int, gap_px: int = 0) -> Frame:
    """Frames of one size side by side, row by row, with black gaps between them; missing places stay black."""
    if not frames:
        raise InvalidArgument("there is no frame to tile")
    height, width = frames[0].shape[:2]
    num_rows = -(-len(frames) // num_columns)
    across, down = width + gap_px, height + gap_px
    canvas = np.zeros((num_rows * down - gap_px, num_columns * across - gap_px, 3), np.uint8)
    for index, frame in enumerate(frames):
        row, column = divmod(index, num_columns)
        canvas[row * down : row * down + height, column * across : column * across + width] = frame
    return canvas


def plot_latencies(path: Path, latencies_ms: Mapping[str, Sequence[float]], deadline_ms: float | None = None) -> Path:
    """Plan latency over time, and its distribution, one line for each name; returns the PNG that was written.

    Raises: InvalidArgument: nothing to plot.
    """
    if not any(len(values) for values in latencies_ms.values()):
        raise InvalidArgument("there is no latency to plot")
    path = path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (over_time, distribution) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, values in latencies_ms.items():
        if not len(values):
            continue
        p50, p95 = np.percentile(values, (50, 95))
        over_time.plot(values, ".", markersize=3, label=name)
        ordered = np.sort(values)
        distribution.plot(
            ordered,
            np.arange(1, len(ordered) + 1) / len(ordered),
            label=f"{name}: p50 {p50:.0f}, p95 {p95:.0f} ms",
        )
    if deadline_ms is not None:
        over_time.axhline(deadline_ms, color="black", linestyle="--", linewidth=1, label="control period")
        distribution.axvline(deadline_ms, color="black", linestyle="--", linewidth=1)
    over_time.set(xlabel="plan", ylabel="latency (ms)", ylim=(0, None))
    distribution.set(xlabel="latency (ms)", ylabel="share of plans", ylim=(0, 1))
    over_time.legend()
    distribution.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
