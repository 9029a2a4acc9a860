"""A model that says which process answers, and how much that process has done before.

A process that starts while the file `broken_if` exists cannot work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mstar_rt.errors import Internal
from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.model import NodeCall, NodeResult, ParamSpec, ServedModel, TaskSpec, TensorSpec

MAX_STEPS = 200
STEP_S = 0.003
"""Long enough that requests are caught in the middle."""

OPEN = GraphNode("open", inputs=("x",), outputs=("opened",))
WORK = GraphNode("work", inputs=("opened",), outputs=("worked", "pid", "num_before"))
KEEP = GraphNode("keep", inputs=("x",), outputs=("kept",))
RECALL = GraphNode("recall", inputs=("kept",), outputs=("recalled", "pid"))

GRAPH = WalkGraph(
    nodes=(OPEN, WORK, KEEP, RECALL),
    walks=(
        Walk(
            "work",
            Sequential(OPEN, Loop("working", WORK, "steps", MAX_STEPS, carry={"opened": "worked"})),
            emit=("pid", "num_before", "worked"),
        ),
        Walk("keep", Sequential(KEEP), persist=("kept",)),
        Walk("recall", Sequential(RECALL), emit=("recalled", "pid")),
    ),
)

X = TensorSpec("x", (1,), ("int64",), "a number")
PID = TensorSpec("pid", (1,), ("int64",), "who computed this")
TASKS = (
    TaskSpec(
        "work", "adds 1, `steps` times", (X,),
        (PID, TensorSpec("num_before", (1,), ("int64",), "calls"), TensorSpec("worked", (1,), ("int64",), "a sum")),
        ("work",), (ParamSpec("steps", "int", 1, "how often", minimum=1, maximum=MAX_STEPS),),
    ),
    TaskSpec("keep", "keeps a number for its session", (X,), (), ("keep",)),
    TaskSpec(
        "recall", "gives it back", (), (TensorSpec("recalled", (1,), ("int64",), "a number"), PID), ("recall",),
        session_inputs=(("kept", "run keep first"),),
    ),
)  # fmt: skip


def declare(name: str, checkpoint: str | None, options: Mapping[str, Any]) -> ServedModel:
    nodes = "replicated_model:build_nodes"
    return ServedModel(name, "replicated", "says who it is", GRAPH, TASKS, nodes, options=dict(options))


def build_nodes(model: ServedModel, resources: Any) -> dict[str, Any]:
    import torch

    num_calls, is_broken = 0, os.path.exists(model.options["broken_if"])

    class Node:
        def batch_key(self, call: NodeCall) -> None:
            return None

        def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
            nonlocal num_calls
            time.sleep(STEP_S)
            if is_broken:
                raise Internal("this process was broken from the start")
            results = [NodeResult(self.outputs(call)) for call in calls]
            num_calls += len(calls)
            return results

        def outputs(self, call: NodeCall) -> dict[str, Any]:
            pid = torch.tensor([os.getpid()])
            match call.node:
                case "open":
                    return {"opened": call.inputs["x"]}
                case "work":
                    return {"worked": call.inputs["opened"] + 1, "pid": pid, "num_before": torch.tensor([num_calls])}
                case "keep":
                    return {"kept": call.inputs["x"]}
                case _:
                    return {"recalled": call.inputs["kept"], "pid": pid}

    return {name: Node() for name in ("open", "work", "keep", "recall")}
