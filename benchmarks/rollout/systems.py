"""The ways to the same latents, each counting its predictor calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import torch

from benchmarks.native.cached import CachedLoop
from benchmarks.native.predictor import NativePredictor
from benchmarks.native.rollout import rollout
from benchmarks.rollout.cases import HORIZONS, Case
from benchmarks.served.deployment import Target, model_name
from benchmarks.served.inputs import random_actions, scene
from benchmarks.served.networks import networks
from world_models.vjepa2.processor import normalise_frames

NATIVE, CACHED, SERVED = "native loop", "cached loop", "served over gRPC"
Step = TypeVar("Step")


class Systems:
    """All systems of one case: same weights, same latents of the one context frame, same actions, of which a rollout
    takes the first."""

    def __init__(self, case: Case, target: Target) -> None:
        self._client = target.client
        self._name = model_name(case.size, case.dtype)
        self._dtype = torch.bfloat16 if case.dtype == "bfloat16" else torch.float32
        view = scene(target.models[self._name])
        self._frames = view.frames
        self._state, self._pose = view.state, torch.from_numpy(view.state)
        self._actions = random_actions(case.num_sequences, max(HORIZONS))
        with torch.inference_mode():
            frames = normalise_frames(torch.from_numpy(view.frames))
            self._latents = networks(case.size).encoder.encode_frames(frames)[0].clone()
        self._own_encoder = networks(case.size, self._dtype).encoder
        self.native_predictor = NativePredictor.like(networks(case.size).predictor)
        predictor = networks(case.size, self._dtype).predictor
        self.cached_loop = CachedLoop(predictor, case.num_sequences, max(case.horizons))
        self.step_seconds: dict[str, list[list[float]]] = {}
        """By system, of each call since it was cleared: when each latent was there, in seconds since the call began."""

    def native(self, horizon: int, dtype: torch.dtype | None = None) -> list[np.ndarray]:
        """Latents [B, P, D] after each step."""
        before = self.native_predictor.num_calls
        actions = torch.from_numpy(self._actions[:, :horizon])
        latents = rollout(self.native_predictor, self._latents, actions, self._pose, dtype or self._dtype)
        assert self.native_predictor.num_calls - before == len(latents) == horizon, "the native loop skipped steps"
        return [latent.numpy() for latent in latents]

    def cached(self, horizon: int) -> list[np.ndarray]:
        return self._cached(self._latents, horizon)

    def served(self, horizon: int) -> list[np.ndarray]:
        return self._served(None, self._latents.numpy()[None], horizon)

    def cached_from_frame(self, horizon: int) -> list[np.ndarray]:
        return self._cached(self._own_latents(), horizon)

    def served_from_frame(self, horizon: int) -> list[np.ndarray]:
        return self._served(self._frames, None, horizon)

    def _own_latents(self) -> torch.Tensor:
        """The latents [P, D] of the frame, by our encoder in the case's dtype."""
        with torch.inference_mode():
            frames = normalise_frames(torch.from_numpy(self._frames), self._dtype)
            return self._own_encoder.encode_frames(frames)[0].float()

    def _cached(self, latents: torch.Tensor, horizon: int) -> list[np.ndarray]:
        before = self.cached_loop.num_calls
        actions = torch.from_numpy(self._actions[:, :horizon])
        steps = self._timed(self.cached_loop.rollout(latents, actions, self._pose), CACHED)
        assert self.cached_loop.num_calls - before == len(steps) == horizon, "the cached loop skipped steps"
        return [latent.numpy() for latent in steps]

    def _served(self, frames: np.ndarray | None, latents: np.ndarray | None, horizon: int) -> list[np.ndarray]:
        stream = self._client.rollout(self._name, frames, self._actions[:, :horizon], self._state, latents=latents)
        steps = self._timed(stream, SERVED)
        assert stream.done is not None
        num_predicted = stream.done.timing.nodes["predict"].num_steps
        assert num_predicted == len(steps) == horizon, "the server skipped steps"
        return [np.asarray(step.latent) for step in steps]

    def _timed(self, steps: Iterable[Step], system: str) -> list[Step]:
        start_s = time.perf_counter()
        got, seconds = [], []
        for step in steps:
            seconds.append(time.perf_counter() - start_s)
            got.append(step)
        self.step_seconds.setdefault(system, []).append(seconds)
        return got
