"""A policy, a plan and a painting that know what time it is. Every step takes its node's time on the worker's clock.

`act` and `act_anytime` are a policy's: y is the sum of 1/n over the n steps that were run, so 1. `plan` improves what it
has until time is up, `paint` paints a picture in strokes, each of which the client is shown, and develops it. `tick` is a short
control step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ParamSpec, ServedModel, TaskSpec, TensorSpec
from policies.anytime.pace import Pace, is_last_step
from policies.anytime.step_times import StepTimes
from policies.anytime.walks import may_end_early, pace_node, with_anytime

MS = 1_000_000
SEE_NS, DENOISE_NS, MORE_NS, LAST_NS = 2 * MS, MS, MS // 2, MS // 2
"""MORE_NS: of a denoise step, for every request that shares it but one."""
IMPROVE_NS, STROKE_NS, TICK_NS = 2 * MS, 2 * MS, MS

SEE = GraphNode("see", ("x",), ("seen", "times"))
DENOISE = GraphNode("denoise", ("seen", "times"), ("seen",))
FINISH = GraphNode("finish", ("seen", "times"), ("y", "num_denoise_steps"))
PACE = pace_node("seen")
IMPROVE = GraphNode("improve", ("x",), ("x",))
STROKE = GraphNode("stroke", ("x",), ("picture",))
DEVELOP = GraphNode("develop", ("picture",), ("y",))
TICK = GraphNode("tick", ("x",), ("y",))

FLOW = Loop("flow", DENOISE, "num_denoise_steps", 20, carry={"seen": "seen"})
SEARCH = DynamicLoop("search", IMPROVE, "steps", 50, carry={"x": "x"}, leave="improve")
STROKES = Loop("strokes", STROKE, "steps", 50, carry={"x": "picture"})
EMIT = ("y", "num_denoise_steps")
GRAPH = WalkGraph(
    nodes=(SEE, PACE, DENOISE, FINISH, IMPROVE, STROKE, DEVELOP, TICK),
    walks=(
        Walk("act", Sequential(SEE, FLOW, FINISH), emit=EMIT),
        Walk("act_anytime", Sequential(SEE, PACE, may_end_early(FLOW, DENOISE), FINISH), emit=EMIT),
        Walk("plan", SEARCH, emit=("x",)),
        Walk("paint", Sequential(STROKES, DEVELOP), emit=("picture", "y")),
        Walk("tick", TICK, emit=("y",)),
    ),
)
X, Y = (TensorSpec(name, (1,), ("float32",), "a number") for name in "xy")
STEPS = ParamSpec("steps", "int", 10, "iterations", minimum=1, maximum=50)
DENOISE_STEPS = ParamSpec("num_denoise_steps", "int", 10, "steps", minimum=1, maximum=20)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    picture, count = (
        TensorSpec("picture", (1,), ("float32",), "so far"),
        TensorSpec("num_denoise_steps", (), ("int64",), ""),
    )
    act = TaskSpec("act", "act", (X,), (Y, count), ("act",), (DENOISE_STEPS,), criticality="control")
    tasks = (
        *with_anytime(act, 2, 20),
        TaskSpec("plan", "plan", (X,), (X,), ("plan",), (STEPS,), anytime=True),
        TaskSpec("paint", "paint", (X,), (picture, Y), ("paint",), (STEPS,), criticality="generation"),
        TaskSpec("tick", "tick", (X,), (Y,), ("tick",), criticality="control"),
    )  # fmt: skip
    return ServedModel(name, "anytime", "knows the time", GRAPH, tasks, "anytime_model:build_nodes")


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    step_times = StepTimes()
    return {
        "see": See(), "pace": Pace(torch.arange, step_times), "denoise": Denoise(step_times), "finish": Finish(), "improve": Improve(),
        "stroke": Stroke(), "develop": Develop(), "tick": Tick(),
    }  # fmt: skip


class Timed:
    step_ns = 0
    more_ns = 0

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        clock: Any = calls[0].now_ns.__self__  # type: ignore[attr-defined]
        clock.advance_ns(self.step_ns + (len(calls) - 1) * self.more_ns)
        return [self.run_one(call) for call in calls]

    def run_one(self, call: NodeCall) -> NodeResult:
        raise AssertionError("each node has its own")


class See(Timed):
    step_ns = SEE_NS

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"seen": call.inputs["x"] * 0, "times": torch.arange(call.params["num_denoise_steps"])})


class Denoise(Timed):
    step_ns, more_ns = DENOISE_NS, MORE_NS

    def __init__(self, step_times: StepTimes) -> None:
        self._step_times = step_times

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        self._step_times.begin(calls)
        return super().run(calls)

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"seen": call.inputs["seen"] + 1 / len(call.inputs["times"])}, leave=is_last_step(call))


class Finish(Timed):
    step_ns = LAST_NS

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"y": call.inputs["seen"], "num_denoise_steps": torch.tensor(len(call.inputs["times"]))})


class Improve(Timed):
    step_ns = IMPROVE_NS

    def run_one(self, call: NodeCall) -> NodeResult:
        is_over = call.deadline_ns is not None and call.now_ns() + self.step_ns > call.deadline_ns
        return NodeResult({"x": call.inputs["x"] + 1}, leave=is_over, flags=("deadline",) if is_over else ())


class Stroke(Timed):
    step_ns = STROKE_NS

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"picture": call.inputs["x"] + 1})


class Develop(Timed):
    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"y": -call.inputs["picture"]})


class Tick(Timed):
    step_ns = TICK_NS

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"y": call.inputs["x"]})
