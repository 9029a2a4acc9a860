"""What the runtime adds to a step of text: the nodes of a served model in a plain loop, and the same model served.

Same engines, same node code, same paged memory; no program, no scheduler, no messages, no processes. What a step costs
is the slope between few and many tokens, so that what a request costs once is not in it; of the fastest of alternating
runs, as whatever else the machine does can only add to them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.report import Report, Row
from benchmarks.speech.text_systems import TextSystems, conversations
from mstar_rt.config import DeploymentConfig
from mstar_rt.launch import declare_models
from mstar_rt.model import NodeCall
from mstar_rt.model.conversation import write_conversation
from mstar_rt.worker.loaded import LoadedModel, load_model

PLAIN, SERVED = "plain loop over the nodes", "served over gRPC"
BATCHES = (1, 8)


async def measure_overhead(
    report: Report, config: DeploymentConfig, name: str, systems: TextSystems, quick: bool
) -> None:
    plain = PlainChat(load_model(declare_models(config)[name], config.workers[0]))
    few, many, repeats = (16, 128, 4) if quick else (32, 512, 15)
    for batch in BATCHES:
        assert plain.run(batch, few) == await systems.served_ids(batch, few), "the plain loop writes something else"
        seconds: dict[tuple[str, int], list[float]] = {(each, n): [] for each in (PLAIN, SERVED) for n in (few, many)}
        for _ in range(repeats):
            for num_tokens in (few, many):
                start_s = time.perf_counter()
                plain.run(batch, num_tokens)
                between_s = time.perf_counter()
                await systems.served(batch, num_tokens)
                seconds[PLAIN, num_tokens].append(between_s - start_s)
                seconds[SERVED, num_tokens].append(time.perf_counter() - between_s)
        step_us = {
            each: (min(seconds[each, many]) - min(seconds[each, few])) / (many - few) * 1e6 for each in (PLAIN, SERVED)
        }
        case = f"{name}, a step of {batch} at once"
        report.rows += [Row(case, each, "per step", value, "us") for each, value in step_us.items()]
        report.rows.append(Row(case, SERVED, "over the plain loop", step_us[SERVED] - step_us[PLAIN], "us"))


class PlainChat:
    """Greedy answers of a language model of family llama."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def run(self, batch: int, num_tokens: int) -> list[list[int]]:
        """The ids of each answer, which all take their steps together."""
        runs = [_Run(self._loaded, turns, num_tokens) for turns in conversations(batch)]
        ids: list[list[int]] = [[] for _ in runs]
        try:
            for node in ("prompt", "prefill"):
                self._step(runs, node, ())
            for index in range(num_tokens):
                self._step(runs, "decode", (index,))
                for run, written in zip(runs, ids, strict=True):
                    written.append(int(run.values["token"]))
            self._step(runs, "finish", ())
        finally:
            for run in runs:
                run.end()
        return ids

    def _step(self, runs: Sequence[_Run], node: str, iteration: tuple[int, ...]) -> None:
        engine = self._loaded.engines[node]
        results = engine.run([run.call(engine.node, iteration) for run in runs])
        for run, result in zip(runs, results, strict=True):
            run.values |= result.outputs


class _Run:
    """One request: what its nodes gave, and its memory."""

    def __init__(self, loaded: LoadedModel, turns: Sequence[Mapping[str, str]], num_tokens: int) -> None:
        conversation = write_conversation(turns)
        options = {"max_tokens": num_tokens, "temperature": 0.0, "ignore_end": True}
        self._params = loaded.model.check_request("chat", {"conversation": conversation}, options)
        self._sequences = loaded.new_sequences()
        self.values: dict[str, Any] = {"conversation": torch.from_numpy(np.asarray(conversation))}

    def call(self, node: Any, iteration: tuple[int, ...]) -> NodeCall:
        inputs = {slot: self.values[slot] for slot in node.inputs}
        sequences = self._sequences.get(node.cache) if node.cache else None
        return NodeCall(
            "plain", "plain", "plain", iteration, inputs, self._params, time.monotonic_ns, sequences=sequences
        )

    def end(self) -> None:
        for store in self._sequences.values():
            store.release_all()
