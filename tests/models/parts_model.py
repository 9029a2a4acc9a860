"""A model whose nodes run in parts, and that can fail in any of them. Every item takes ITEM_NS on the worker's clock.

Walks: `gather` squares numbers one by one, `store` keeps one paged sequence per number, for several steps, and `tick` is
one short node without items.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.graph import DynamicLoop, GraphNode, Walk, WalkGraph
from mstar_rt.model import KVSpec, NodeCall, NodeResources, NodeResult, ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind

ITEM_NS = 1_000_000
PAGE = 2

X = TensorSpec("x", ("N",), ("float32",), "numbers", max_sizes=(("N", 64),))
Y = TensorSpec("y", ("N",), ("float32",), "numbers")
PARAMS = (
    ParamSpec("steps", "int", 1, "loop iterations", minimum=1, maximum=8),
    ParamSpec("fail_at", "int", -1, "the item whose part fails", minimum=-1),
    ParamSpec("misbehave", "str", "no", "how", choices=("no", "raise", "own_error", "outputs", "no_outputs", "items")),
)
GATHER = GraphNode("gather", ("x",), ("y",))
STORE = GraphNode("store", ("x",), ("y",), engine="kv_cache", cache="rows")
TICK = GraphNode("tick", ("x",), ("y",))
GRAPH = WalkGraph(
    nodes=(GATHER, STORE, TICK),
    walks=(
        Walk("gather", GATHER, emit=("y",)),
        Walk("store", DynamicLoop("storing", STORE, "steps", 8, carry={"x": "y"}, leave="store"), emit=("y",)),
        Walk("tick", TICK, emit=("y",)),
    ),
)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    tasks = tuple(TaskSpec(walk, walk, (X,), (Y,), (walk,), PARAMS) for walk in ("gather", "store", "tick"))
    caches = {"rows": KVSpec(1, 1, 16, PAGE, 16)}
    return ServedModel(name, "parts", "in parts", GRAPH, tasks, "parts_model:build_nodes", caches=caches)


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    return {"gather": Gather(), "store": Store(), "tick": Tick()}


def part_of(call: NodeCall) -> range:
    return call.part if call.part is not None else range(call.num_items)


def take_time(call: NodeCall) -> None:
    clock: Any = call.now_ns.__self__  # type: ignore[attr-defined]
    clock.advance_ns(len(part_of(call)) * ITEM_NS)
    if call.params["fail_at"] in part_of(call):
        match call.params["misbehave"]:
            case "raise":
                raise RuntimeError("a secret of the implementation")
            case "own_error":
                raise InvalidArgument("this number is refused")


class Tick:
    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({"y": call.inputs["x"] + 1}) for call in calls]


class InItems:
    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return 0 if call.params["misbehave"] == "items" else len(call.inputs["x"])

    def result(self, call: NodeCall, values: torch.Tensor) -> NodeResult:
        take_time(call)
        values = torch.cat([*(call.progress or []), values])
        if call.is_last_part:
            return NodeResult({} if call.params["misbehave"] == "no_outputs" else {"y": values})
        return NodeResult({"y": values} if call.params["misbehave"] == "outputs" else {}, progress=[values])


class Gather(InItems):
    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self.result(call, call.inputs["x"][list(part_of(call))].square()) for call in calls]


class Store(InItems):
    """The mean of what each row has had so far, plus one."""

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        tables = [call.sequences.get(row) for row in part_of(call)]
        return [AttentionStep(table, 1, StepKind.BLOCK_APPEND) for table in tables]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        x = torch.cat([call.inputs["x"][list(part_of(call))] for call in calls])
        v = x[:, None, None].expand(-1, 1, 16).contiguous()
        means = attention.run(0, torch.zeros_like(v), torch.zeros_like(v), v)[:, 0, 0]
        parts = torch.split(means, [len(part_of(call)) for call in calls])
        return [self.result(call, part + 1) for call, part in zip(calls, parts, strict=True)]
