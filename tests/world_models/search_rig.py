"""The search around a world of one line: the latent of a frame is where the effector stands.

Latents are [1, 4] (x, y, z, gripper) and an action adds to them, so what a plan is worth is known in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mstar_rt.clock import ManualClock
from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import NodeCall, NodeResult, OneByOne
from mstar_rt.model.spec import check_params
from mstar_rt.program import WalkRun, compile_walk
from world_models.planning import cost
from world_models.planning.cem import without_rotation
from world_models.planning.nodes import planning_nodes
from world_models.planning.options import GOAL_USES, PlannerDefaults, plan_params
from world_models.planning.tree import rows_at
from world_models.planning.walk import PLAN_KEEPS, PLAN_OUTPUTS, PLANNING_NODES, search_section

MAX_FRAMES = 8
PREDICT = GraphNode(
    "predict",
    inputs=("imagined", "actions", "poses", "goal", "goal_weights", "goal_mode"),
    outputs=("imagined", "goal_distance"),
)
GRAPH = WalkGraph(
    nodes=(PREDICT, *PLANNING_NODES),
    walks=(Walk("plan", search_section(PREDICT, MAX_FRAMES), emit=PLAN_OUTPUTS, persist=PLAN_KEEPS),),
)
PROGRAM = compile_walk(GRAPH, "plan")
PARAMS = plan_params(PlannerDefaults(num_samples=60, num_elites=6, num_iterations=3), MAX_FRAMES)
NOWHERE = torch.zeros(7)


class MoveTheEffector(OneByOne):
    """The world itself; `num_rows` counts what it was asked for, step by step."""

    def __init__(self) -> None:
        self.num_rows: list[int] = []
        self.actions: list[torch.Tensor] = []

    def run_one(self, call: NodeCall) -> NodeResult:
        actions, step = call.inputs["actions"], call.iteration[-1]
        if step == 0:
            self.actions.append(actions)
        rows = rows_at(step, len(actions), call.params["tree_branching"])
        before = call.inputs["imagined"][:, -1]
        before = before.repeat_interleave(rows // len(before), dim=0)
        after = before + without_rotation(actions[:: len(actions) // rows, step])[:, None]
        self.num_rows.append(rows)
        mode, horizon = int(call.inputs["goal_mode"]), call.params["rollout_horizon"]
        distance = torch.zeros(0)
        if cost.has_distance(mode, step, horizon):
            goal, weights = call.inputs["goal"], call.inputs["goal_weights"]
            distance = cost.goal_distance(after, goal, weights, mode, step, call.params["cost"])
        outputs = {"imagined": after[:, None], "goal_distance": distance}
        return NodeResult(outputs, leave=step + 1 == horizon)


@dataclass
class Searched:
    """One plan: what it gave after each iteration, and what the world was asked for."""

    world: MoveTheEffector
    emitted: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def actions(self) -> torch.Tensor:
        return self.emitted["plan_actions"][-1]

    @property
    def end(self) -> torch.Tensor:
        """Where the plan leads to, (x, y, z, gripper), from the origin."""
        return without_rotation(self.actions).sum(dim=0)

    @property
    def num_iterations(self) -> int:
        return len(self.emitted["plan_actions"])


def search(
    goal: torch.Tensor,
    *,
    weights: torch.Tensor | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    deadline_ns: int | None = None,
    now_ns: int = 0,
    node_ns: int = 0,
    **options: Any,
) -> Searched:
    """Plan from the origin to goals [G, 4]; each node takes `node_ns` on a clock that starts at `now_ns`."""
    params = check_params(PARAMS, options, "toy.plan")
    world = MoveTheEffector()
    nodes = planning_nodes("cpu") | {"predict": world}
    inputs: dict[str, Any] = dict.fromkeys(name for name, _ in PROGRAM.inputs)
    inputs |= {
        "context": torch.zeros(1, 1, 4),
        "pose": NOWHERE,
        "goal": goal[:, None],
        "goal_weights": torch.ones(len(goal)) if weights is None else weights,
        "goal_mode": torch.tensor(GOAL_USES.index(str(params["goal_use"]))),
        **(tensors or {}),
    }
    searched, clock = Searched(world), ManualClock(now_ns)
    run = WalkRun(PROGRAM, {name: params[name] for name in PROGRAM.params})  # type: ignore[misc]
    ready = run.start(inputs)
    while ready:
        firing = ready.pop(0)
        call = NodeCall("r", "s", "plan", firing.iteration, firing.inputs, params, clock.now_ns, deadline_ns)
        result = nodes[firing.name].run_one(call)
        clock.advance_ns(node_ns)
        progress = run.complete(firing, result.outputs, result.leave)
        ready += progress.ready
        searched.flags += result.flags
        for emission in progress.emitted:
            searched.emitted.setdefault(emission.name, []).append(emission.value)
    searched.kept = run.persisted
    return searched
