"""Served rollouts by context window: how far they are from what happened, and what a step of them costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.report import Report, Row
from benchmarks.report.timing import alternate
from benchmarks.served.deployment import Target
from benchmarks.served.inputs import random_actions, scene
from mstar_rt.client import Client
from world_models.vjepa2.train.episodes import HELD_OUT_STREAM, Episodes, record_episodes
from world_models.vjepa2.train.probes import PositionProbe

MODEL = "small"
HORIZONS = (7, 15, 30)
LONGEST = HORIZONS[-1]
EPISODE_SEED = 1
NUM_PROBE_EPISODES = 100
FRAMES_PER_REQUEST = 200
ACTION_DIM = 7
WINDOWS: dict[str, dict[str, int]] = {"no window": {}} | {
    f"window {size}, stride {stride}": {"context_window": size, "window_stride": stride}
    for size, strides in ((1, (1,)), (2, (1,)), (3, (1,)), (5, (1, 2)), (7, (1, 3, 6)))
    for stride in strides
}
POSES = {"poses integrated": False, "poses given": True}
"""The rod is stopped by the walls and by a puck at a wall; poses that are integrated from actions do not know that."""


def measure_errors(report: Report, client: Client, num_episodes: int) -> None:
    """Each episode's actions imagined from its first frame, against its own frames as encoded."""
    episodes = record_episodes(EPISODE_SEED, HELD_OUT_STREAM, NUM_PROBE_EPISODES + num_episodes, LONGEST + 1)
    latents, places = _encoded(client, episodes), np.concatenate((episodes.effector, episodes.puck), -1)
    probe = PositionProbe(
        torch.from_numpy(latents[:NUM_PROBE_EPISODES]).flatten(0, 1), places[:NUM_PROBE_EPISODES].reshape(-1, 4)
    )
    held_out = range(NUM_PROBE_EPISODES, len(latents))
    truth, true_places = latents[held_out, 1:], places[held_out, 1:]
    for poses, are_given in POSES.items():
        imagined = {
            name: np.stack([_imagined(client, episodes, latents, index, are_given, options) for index in held_out])
            for name, options in WINDOWS.items()
        }
        imagined["nothing moves"] = np.broadcast_to(latents[held_out, :1], truth.shape)
        imagined["the truth"] = truth
        for step in HORIZONS:
            for name, frames in imagined.items():
                errors = _errors(frames[:, step - 1], truth[:, step - 1], true_places[:, step - 1], probe)
                case = f"H={step}, {poses}"
                report.rows += [Row(case, name, metric, value, unit) for metric, (value, unit) in errors.items()]


def measure_steps(report: Report, reached: Target, num_rounds: int) -> None:
    """A rollout of one sequence, streamed, divided by its steps; on the middle size too, with random weights."""
    for size in ("small", "middle"):
        view, actions = scene(reached.models[size]), random_actions(1, LONGEST)[0]
        latents = reached.client.encode(size, view.frames).latents
        runs = {
            name: functools.partial(_latents, reached.client, size, latents, actions, view.state, options)
            for name, options in WINDOWS.items()
        }
        seconds = alternate(runs, budget_s=600.0, max_rounds=num_rounds)
        for name, values in seconds.items():
            step_ms = float(np.median(values)) / LONGEST * 1e3
            report.rows.append(Row(f"{size}, H={LONGEST}", name, "time per step, p50", step_ms, "ms"))


def plot(report: Report, path: str) -> None:
    """Decoded errors over the imagined steps, a line for each window."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained", sharey=True)
    for panels, poses in zip(grid, POSES, strict=True):
        for panel, metric in zip(panels, ("rod error", "puck error"), strict=True):
            rows = [row for row in report.rows if row.metric == metric and row.case.endswith(poses)]
            for name in dict.fromkeys(row.system for row in rows):
                panel.plot(HORIZONS, [row.value for row in rows if row.system == name], marker="o", label=name)
            panel.set(xlabel="imagined steps", ylabel="mm", title=f"{metric}, {poses}")
    grid[0, 0].legend(fontsize=7)
    figure.savefig(path, dpi=120)


def _imagined(
    client: Client, episodes: Episodes, latents: np.ndarray, index: int, are_given: bool, options: Mapping[str, int]
) -> np.ndarray:
    """[H, P, D]; with the poses at which the rod really was, or integrated on the server."""
    states, first = _seven(episodes.effector[index]), latents[index, :1]
    known = {"states": states[:-1]} if are_given else {}
    return _latents(client, MODEL, first, _seven(episodes.actions[index]), states[0], {**options, **known})


def _latents(
    client: Client, model: str, first: np.ndarray, actions: np.ndarray, state: np.ndarray, options: Mapping[str, Any]
) -> np.ndarray:
    steps = client.rollout(model, None, actions, state, latents=first, **options)
    return np.stack([step.latent for step in steps if step.latent is not None])


def _errors(
    frames: np.ndarray, truth: np.ndarray, places: np.ndarray, probe: PositionProbe
) -> dict[str, tuple[float, str]]:
    """frames and truth [N, P, D]; distances in the plane between where things are [N, 4] and where the probe says."""
    offsets_m = (probe(torch.from_numpy(frames.copy())).numpy() - places).reshape(-1, 2, 2)
    rod_mm, puck_mm = np.linalg.norm(offsets_m, axis=-1).mean(axis=0) * 1e3
    latent_l1 = np.abs(frames - truth).mean()
    return {"latent L1": (float(latent_l1), ""), "rod error": (rod_mm, "mm"), "puck error": (puck_mm, "mm")}


def _encoded(client: Client, episodes: Episodes) -> np.ndarray:
    """[N, T, P, D] of the images, as the server encodes them."""
    images = episodes.images.reshape(-1, *episodes.images.shape[2:])
    parts = [images[start : start + FRAMES_PER_REQUEST] for start in range(0, len(images), FRAMES_PER_REQUEST)]
    latents = np.concatenate([client.encode(MODEL, part).latents for part in parts])
    return latents.reshape(*episodes.images.shape[:2], *latents.shape[1:])


def _seven(places_m: np.ndarray) -> np.ndarray:
    """x, y [..., 2] -> [..., 7]."""
    seven = np.zeros((*places_m.shape[:-1], ACTION_DIM), np.float32)
    seven[..., :2] = places_m
    return seven
