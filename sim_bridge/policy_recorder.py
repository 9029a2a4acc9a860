"""What the policy part of the demo leaves for people to look at: the robots side by side, and where chunks meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from numpy.typing import NDArray

from sim_bridge.camera import draw_tabletop
from sim_bridge.policy_episode import PolicyEpisode
from sim_bridge.recorder import VideoRecorder, tile
from sim_bridge.tabletop_servo import CONTROL_HZ

PICTURE_PX = 128
GAP_PX = 6
CAPTION_PX = 20
_COLORS = ("tab:blue", "tab:orange")


def save_video(path: Path, rows: Mapping[str, Sequence[PolicyEpisode]]) -> Path:
    """One row of robots for each name, in real time; an episode that is over stands still. Returns what was written."""
    video = VideoRecorder(CONTROL_HZ)
    num_ticks = max(len(episode.ticks) for episodes in rows.values() for episode in episodes)
    for index in range(num_ticks):
        video.add(np.concatenate([_row(name, episodes, index) for name, episodes in rows.items()]))
    return video.save(path)


def _row(name: str, episodes: Sequence[PolicyEpisode], index: int) -> NDArray[np.uint8]:
    pictures = []
    for episode in episodes:
        tick = episode.ticks[min(index, len(episode.ticks) - 1)]
        pictures.append(draw_tabletop(tick.effector_xy, tick.puck_xy, PICTURE_PX))
    robots = tile(pictures, len(pictures), GAP_PX)
    caption = np.zeros((CAPTION_PX, robots.shape[1], 3), np.uint8)
    cv2.putText(caption, name, (4, 14), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (235, 235, 235), 1, cv2.LINE_AA)
    return np.concatenate([caption, robots])


def plot_seams(path: Path, rows: Mapping[str, PolicyEpisode], dimension: int = 0) -> Path:
    """One episode under each name, its executed actions coloured by chunk. Left: the target (one dimension, mm), and
    dashed what the chunk would have gone on with. Right: by how much the target changes from tick to tick. Ticks
    without an action are grey. Returns the PNG.
    """
    path = path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(
        len(rows), 2, figsize=(11, 2.5 * len(rows)), sharex=True, sharey="col", squeeze=False, layout="constrained"
    )
    for (targets, changes), (name, episode) in zip(axes, rows.items(), strict=True):
        _draw_episode(targets, changes, episode, dimension)
        targets.set(ylabel="target x (mm)", title=name)
        changes.set(ylabel="change per tick (mm)")
    for axis in axes[-1]:
        axis.set(xlabel="time (s)")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path


def _draw_episode(targets: Axes, changes: Axes, episode: PolicyEpisode, dimension: int) -> None:
    chunks = {chunk.seq: chunk for chunk in episode.chunks}
    runs = _runs_of_one_chunk(episode)
    before: float | None = None
    for number, (seq, ticks, last_index) in enumerate(runs):
        times, color = np.array(ticks) / CONTROL_HZ, _COLORS[number % 2]
        if seq is None:
            for axis in (targets, changes):
                axis.axvspan(times[0], times[-1] + 1 / CONTROL_HZ, color="0.88", linewidth=0)
            continue
        values = [1e3 * float(episode.ticks[tick].action.action[dimension]) for tick in ticks]  # type: ignore[index]
        targets.plot(times, values, ".-", color=color, markersize=4, linewidth=1.2)
        steps = np.diff([values[0] if before is None else before, *values])
        changes.bar(times, steps, width=0.8 / CONTROL_HZ, color=color)
        before = values[-1]
        if seq in chunks and number + 1 < len(runs):
            rest = 1e3 * chunks[seq].actions[last_index:, dimension]
            targets.plot(
                times[-1] + np.arange(len(rest)) / CONTROL_HZ, rest, "--", color=color, linewidth=0.7, alpha=0.6
            )


def _runs_of_one_chunk(episode: PolicyEpisode) -> list[tuple[int | None, list[int], int]]:
    """Ticks that one chunk was executed in a row: (seq or None for none, ticks, row of the last)."""
    runs: list[tuple[int | None, list[int], int]] = []
    for tick, record in enumerate(episode.ticks):
        seq, index = record.action.chunk_seq, record.action.index or 0
        if runs and runs[-1][0] == seq:
            runs[-1] = (seq, [*runs[-1][1], tick], index)
        else:
            runs.append((seq, [tick], index))
    return runs
