"""The nodes of a served model called in a plain Python loop: the least that running them can cost.

Same engines, same node code, same paged memory; no program, no scheduler, no messages, no processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mstar_rt.config import WorkerConfig
from mstar_rt.model import NodeCall, ServedModel
from mstar_rt.worker.loaded import LoadedModel, load_model


class PlainLoop:
    """Plans and rollouts of one V-JEPA 2-AC."""

    def __init__(self, model: ServedModel, worker: WorkerConfig) -> None:
        self.loaded: LoadedModel = load_model(model, worker)
        self.num_predict_steps = 0

    def plan(self, tensors: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
        """Actions [H, 7]."""
        params = self.loaded.model.check_request("plan", tensors, options)
        run = _Run(self, params)
        values = run.begin(tensors, "recall")
        values |= run.call("search_start", values)
        for iteration in range(params["num_iterations"]):  # type: ignore[arg-type]
            values |= run.call("sample", values, (iteration,))
            values |= run.imagine(values, (iteration,))
            values |= run.call("score", values, (iteration,))
            values |= run.call("refit", values, (iteration,))
        run.end()
        return np.asarray(values["plan_actions"])

    def rollout(self, tensors: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The latent [B, P, D] after each step."""
        params = self.loaded.model.check_request("rollout", tensors, {})
        run = _Run(self, params)
        values = run.begin(tensors, "rollout_start")
        latents = run.imagine(values, ())["latents"]
        run.end()
        return [latent.numpy() for latent in latents]


class _Run:
    """One request: its memory, and how a node is called for it."""

    def __init__(self, loop: PlainLoop, params: Mapping[str, Any]) -> None:
        self._loop = loop
        self._params = params
        self._sequences = loop.loaded.new_sequences()

    def begin(self, tensors: Mapping[str, np.ndarray], start: str) -> dict[str, Any]:
        """What both tasks do first: encode goal and context, `start` from it, put the past into the cache."""
        program_inputs = {name for program in self._loop.loaded.programs.values() for name, _ in program.inputs}
        values: dict[str, Any] = dict.fromkeys(program_inputs)
        values |= {name: torch.from_numpy(array) for name, array in tensors.items()}
        for node in ("observe_goal", "observe", start, "remember"):
            values |= self.call(node, values)
        return values

    def imagine(self, values: dict[str, Any], iteration: tuple[int, ...]) -> dict[str, Any]:
        """All steps; what they give, collected."""
        latents, distances = [], []
        for step in range(self._params["rollout_horizon"]):
            values |= self.call("predict", values, (*iteration, step))
            latents.append(values["latent"])
            distances.append(values["goal_distance"])
        return {"latents": latents, "goal_distances": distances}

    def call(self, node: str, values: Mapping[str, Any], iteration: tuple[int, ...] = ()) -> dict[str, Any]:
        engine = self._loop.loaded.engines[node]
        inputs = {slot: values[slot] for slot in engine.node.inputs}
        sequences = self._sequences.get(engine.node.cache) if engine.node.cache else None
        call = NodeCall(
            "plain", "plain", "plain", iteration, inputs, self._params, time.monotonic_ns, sequences=sequences
        )
        self._loop.num_predict_steps += node == "predict"
        return engine.run([call])[0].outputs

    def end(self) -> None:
        for store in self._sequences.values():
            store.release_all()
