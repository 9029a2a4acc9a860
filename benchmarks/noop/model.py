"""Nodes that hand on what they get. Walks:

echo    x -> y                       one node: what a request costs
turn    x [step]... -> end           a DynamicLoop around one node
hop     x [left, right]... -> end    a DynamicLoop around two nodes: two hops per iteration, on one rank or between two
stream  x [make]... => [take]... -> y    items into chunks, one chunk per consumer step
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mstar_rt.errors import ConfigError
from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphNode,
    Parallel,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ParamSpec, ServedModel, TaskSpec, TensorSpec

MAX_STEPS = 100_000
CHUNK = 4

ECHO = GraphNode("echo", ("x",), ("y",))
STEP = GraphNode("step", ("x",), ("x",))
LEFT = GraphNode("left", ("x",), ("x",))
RIGHT = GraphNode("right", ("x",), ("x",))
MAKE = GraphNode("make", ("x",), ("x",))
TAKE = GraphNode("take", ("chunk",), ("y",))
END = GraphNode("end", ("x",), ("y",), doc="one element of x: the answer stays small")

X = TensorSpec("x", ("N",), ("uint8",), "any bytes", max_sizes=(("N", 1 << 26),))
Y = TensorSpec("y", ("M",), ("uint8",), "the first byte, or all of them")
STEPS = ParamSpec("steps", "int", 1, "iterations", minimum=1, maximum=MAX_STEPS)


def _turns(name: str, body: Any, leave: str) -> DynamicLoop:
    return DynamicLoop(name, body, "steps", MAX_STEPS, carry={"x": "x"}, leave=leave)


GRAPH = WalkGraph(
    nodes=(ECHO, STEP, LEFT, RIGHT, MAKE, TAKE, END),
    walks=(
        Walk("echo", ECHO, emit=("y",)),
        Walk("turn", Sequential(_turns("turns", STEP, "step"), END), emit=("y",)),
        Walk("hop", Sequential(_turns("hops", Sequential(LEFT, RIGHT), "right"), END), emit=("y",)),
        Walk(
            "stream",
            Parallel(_turns("making", MAKE, "make"), StreamLoop("taking", TAKE)),
            emit=("y",),
            edges=(StreamingGraphEdge("make.x", "take.chunk", FixedChunkPolicy(CHUNK)),),
        ),
    ),
)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    if options or checkpoint:
        raise ConfigError("the no-op model takes neither options nor a checkpoint")
    tasks = (
        TaskSpec("echo", "one node", (X,), (Y,), ("echo",)),
        *(TaskSpec(walk, "a loop", (X,), (Y,), (walk,), (STEPS,)) for walk in ("turn", "hop", "stream")),
    )
    return ServedModel(name, "noop", "does nothing", GRAPH, tasks, "benchmarks.noop.model:build_nodes")


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    nodes = {
        "echo": HandOn("y"), "step": HandOn("x"), "left": HandOn("x"), "right": HandOn("x"), "make": HandOn("x"),
        "take": FirstOfChunk(), "end": First(),
    }  # fmt: skip
    return {name: code for name, code in nodes.items() if not resources.nodes or name in resources.nodes}


class HandOn:
    """The output is the input; loops run as often as the request says."""

    def __init__(self, output: str) -> None:
        self._output = output

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({self._output: call.inputs["x"]}) for call in calls]


class First:
    """x [N] -> y [1]."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({"y": call.inputs["x"][:1].clone()}) for call in calls]


class FirstOfChunk:
    """A chunk of items [N] -> y [items in the chunk], the first byte of each."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        import torch

        return [
            NodeResult({"y": torch.stack([item[0] for item in call.inputs["chunk"].items])})  # type: ignore[attr-defined]
            for call in calls
        ]
