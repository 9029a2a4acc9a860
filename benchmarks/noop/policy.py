"""A policy that does nothing, for `hold_ms`: an observation of three cameras in, a chunk of zeros out."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mstar_rt.errors import ConfigError
from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import (
    CameraSpec,
    NodeCall,
    NodeResources,
    NodeResult,
    PolicySpec,
    ServedModel,
    TaskSpec,
    TensorSpec,
    VectorSpec,
)

CAMERAS = tuple(CameraSpec(name, 224, 224) for name in ("base", "left_wrist", "right_wrist"))
STATE, HORIZON, ACTION = 32, 50, 32
POLICY = PolicySpec(VectorSpec(ACTION), HORIZON, CAMERAS, VectorSpec(STATE))


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    if checkpoint or set(options) - {"hold_ms"}:
        raise ConfigError("the no-op policy takes no checkpoint, and no option but hold_ms")
    images = tuple(TensorSpec(each.tensor, (each.height, each.width, 3), ("uint8",), each.name) for each in CAMERAS)
    inputs = (*images, TensorSpec("state", (STATE,), ("float32",), "any numbers"))
    outputs = (TensorSpec("actions", (HORIZON, ACTION), ("float32",), "zeros"),)
    act = GraphNode("act", tuple(spec.name for spec in inputs), ("actions",))
    graph = WalkGraph(nodes=(act,), walks=(Walk("act", act, emit=("actions",)),))
    task = TaskSpec("act", "nothing", inputs, outputs, ("act",), criticality="control")
    return ServedModel(
        name, "noop_policy", "does nothing", graph, (task,), "benchmarks.noop.policy:build_nodes", policy=POLICY,
        facts={"hold_ms": float(options.get("hold_ms", 0))},
    )  # fmt: skip


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    return {"act": StandStill(float(model.facts["hold_ms"]) / 1e3)}


class StandStill:
    def __init__(self, hold_s: float) -> None:
        import torch

        self._hold_s = hold_s
        self._actions = torch.zeros(HORIZON, ACTION)

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        if self._hold_s > 0:
            time.sleep(self._hold_s)
        return [NodeResult({"actions": self._actions}) for _ in calls]
