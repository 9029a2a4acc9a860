"""A tiny model with every kind of node and ways to misbehave; declared by dotted path, like a deployer's own model.

Walks: `count` adds 1 to x in a loop, `remember` runs a loop over paged memory, `keep` persists, `recall` reads what an
earlier request of the session kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.graph import DynamicLoop, GraphNode, Parallel, Sequential, Walk, WalkGraph
from mstar_rt.model import (
    KVSpec,
    NodeCall,
    NodeResources,
    NodeResult,
    ParamSpec,
    ServedModel,
    TaskSpec,
    TensorSpec,
)

X = TensorSpec("x", ("N",), ("float32",), "numbers", max_sizes=(("N", 1 << 20),))
Y = TensorSpec("y", ("N",), ("float32",), "numbers")
STEPS = ParamSpec("steps", "int", 2, "loop iterations", minimum=1, maximum=1000)
MISBEHAVE = ParamSpec(
    "misbehave",
    "str",
    "no",
    "what goes wrong, in which call",
    choices=("no", "raise", "own_error", "wrong_output", "bad_key", "bad_value", "die"),
)
LEAVE_AT = ParamSpec("leave_at", "int", 1000, "iteration after which the loop is left", minimum=0)

ADD = GraphNode("add", ("x",), ("y",))
REMEMBER = GraphNode("remember", ("x",), ("y",), engine="kv_cache", cache="memory")
KEEP = GraphNode("keep", ("x",), ("kept",))
RECALL = GraphNode("recall", ("kept",), ("y",))

GRAPH = WalkGraph(
    nodes=(ADD, REMEMBER, KEEP, RECALL),
    walks=(
        Walk("count", DynamicLoop("counting", ADD, "steps", 1000, carry={"x": "y"}, leave="add"), emit=("y",)),
        Walk(
            "remember",
            DynamicLoop("remembering", REMEMBER, "steps", 1000, carry={"x": "y"}, leave="remember"),
            emit=("y",),
        ),
        Walk("keep", Sequential(KEEP), persist=("kept",)),
        Walk(
            "twice",
            Parallel(KEEP.bind(outputs={"kept": "a"}, alias="first"), KEEP.bind(outputs={"kept": "b"}, alias="second")),
            emit=("a", "b"),
        ),
        Walk("recall", Sequential(RECALL), emit=("y",)),
    ),
)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    known = {"refuse_to_load", "page_size"}
    for key in options:
        if key not in known:
            raise ConfigError(f"toy model: unknown option {key!r}")
    params = (STEPS, MISBEHAVE, LEAVE_AT)
    return ServedModel(
        name=name,
        family="toy",
        doc="counts",
        graph=GRAPH,
        tasks=(
            TaskSpec("count", "add 1 in a loop", (X,), (Y,), ("count",), params),
            TaskSpec("count_anytime", "the same, anytime", (X,), (Y,), ("count",), params, anytime=True),
            TaskSpec("remember", "mean over paged memory", (X,), (Y,), ("remember",), params),
            TaskSpec("keep", "persist x", (X,), (), ("keep",)),
            TaskSpec("recall", "read it back", (), (Y,), ("recall",), session_inputs=(("kept", "run keep first"),)),
            TaskSpec("keep_and_recall", "two walks", (X,), (Y,), ("keep", "recall")),
            TaskSpec("keep_and_count", "two walks that both read x", (X,), (Y,), ("keep", "count"), params),
        ),
        nodes_factory="toy_model:build_nodes",
        caches={"memory": KVSpec(1, 1, 16, int(options.get("page_size", 4)), 64)},
        options=options,
    )


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    if model.options.get("refuse_to_load"):
        raise ConfigError("the toy model was told not to load")
    return {"add": Add(), "remember": Remember(), "keep": Copy("x", "kept"), "recall": Copy("kept", "y")}


class Add:
    """y = x + 1, with the misbehaviour asked for."""

    def batch_key(self, call: NodeCall) -> Hashable:
        if call.params["misbehave"] == "bad_key" and call.iteration[-1] == 1:
            raise RuntimeError("a secret of the implementation")
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        for call in calls:
            _misbehave(call.params["misbehave"])
        return [
            NodeResult(_output(call.params["misbehave"], call.inputs["x"] + 1), leave=_leaves(call)) for call in calls
        ]


class Copy:
    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({self._target: call.inputs[self._source]}) for call in calls]


class Remember:
    """Appends x (as a token per number) and returns the running mean of all values so far, plus x's own shape."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[Any]:
        from mstar_rt.nn.attention import AttentionStep, StepKind

        return [AttentionStep(call.sequences.get("all"), len(call.inputs["x"]), StepKind.BLOCK_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: Any) -> list[NodeResult]:
        import torch

        for call in calls:
            _misbehave(call.params["misbehave"])
        x = torch.cat([call.inputs["x"] for call in calls])
        v = x[:, None, None].expand(-1, 1, 16).contiguous()
        # Equal keys: attention is a plain mean over what the sequence holds.
        out = attention.run(0, torch.zeros_like(v), torch.zeros_like(v), v)[:, 0, 0]
        parts = torch.split(out, [len(call.inputs["x"]) for call in calls])
        return [NodeResult({"y": part + 1}, leave=_leaves(call)) for part, call in zip(parts, calls, strict=True)]


def _leaves(call: NodeCall) -> bool:
    return call.iteration[-1] >= call.params["leave_at"]


def _output(misbehave: str, value: Any) -> dict[str, Any]:
    if misbehave == "wrong_output":
        return {"z": value}
    return {"y": value.to_sparse() if misbehave == "bad_value" else value}


def _misbehave(how: str) -> None:
    if how == "raise":
        raise RuntimeError("a secret of the implementation")
    if how == "own_error":
        raise InvalidArgument("the node refuses this")
    if how == "die":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
