"""A search for actions as a section of a walk, around any world model that can take one step. No torch.

    search_start -> [ sample -> [ predict ... ] -> score -> refit ] ...

Tensors, with N candidates, H steps, E elites, P patches of D numbers, K frames that the model has to see (one, unless
its window is going to slide), and R rows of step h: N, or fewer where candidates form a tree:

    context [T, P, D], pose [7]            latents of the frames so far, and the effector's pose at the last one
    mean, std [H, 4], rng_state [5056]     the search's state, carried from iteration to iteration
    elite_actions [E, H, 7], elite_costs   elites that stay candidates, carried too; none unless keep_elites
    bounds [2, 4]                          the box in which actions are searched
    actions [N, H, 7], poses [N, H+1, 7]   the candidates, and the pose before each action and after the last
    row_ns                                 nanoseconds per imagined step and row, from the session's last plan
    imagined [R, K, P, D]                  where the imagination stands, carried from step to step
    goal_distance [R] or [0]               after each step; empty where the plan does not ask for it
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Loop, NodeUse, Section, Sequential
from world_models.planning.options import MAX_ITERATIONS

SEARCH_START = GraphNode(
    "search_start",
    inputs=("context", "initial_mean", "warm_mean", "action_low", "action_high"),
    outputs=("mean", "std", "rng_state", "bounds", "elite_actions", "elite_costs"),
    doc="the Gaussian and the random state that the search starts from",
)
SAMPLE = GraphNode(
    "sample",
    inputs=("mean", "std", "rng_state", "bounds", "context", "pose", "row_ns"),
    outputs=("actions", "poses", "imagined", "rng_state", "started_ns"),
    doc="candidate action sequences, and the poses that they lead through",
)
SCORE = GraphNode(
    "score",
    inputs=("goal_distances",),
    outputs=("costs",),
    doc="what each candidate costs: its distances to the goals, summed over the steps that count",
)
REFIT = GraphNode(
    "refit",
    inputs=("mean", "std", "actions", "costs", "elite_actions", "elite_costs", "started_ns"),
    outputs=(
        "mean", "std", "plan_actions", "plan_cost", "elite_std", "warm_mean", "row_ns", "elite_actions", "elite_costs"
    ),
    doc="move the Gaussian towards the cheapest candidates; leaves when time is up or the search converged",
)  # fmt: skip
PLANNING_NODES = (SEARCH_START, SAMPLE, SCORE, REFIT)
PLAN_OUTPUTS = ("plan_actions", "plan_cost", "elite_std")
PLAN_KEEPS = ("warm_mean", "row_ns")
"""What the next plan of a session goes on from: this plan shifted by a step, and how long a step took."""


def imagine_section(predict: NodeUse | GraphNode, max_horizon: int, *, collects_distances: bool = False) -> Loop:
    """World-model steps for all rows of `imagined` at once; `predict` leaves after the last action.

    `collects_distances`: what follows reads `goal_distances`, a `goal_distance` of each step.
    """
    return DynamicLoop(
        "imagine",
        predict,
        times="rollout_horizon",
        limit=max_horizon,
        carry={"imagined": "imagined"},
        collect={"goal_distance": "goal_distances"} if collects_distances else None,
        leave=predict.name,
    )


def search_section(predict: NodeUse | GraphNode, max_horizon: int) -> Section:
    """The whole search. Upstream must provide context and pose, and what `predict` reads besides."""
    imagine = imagine_section(predict, max_horizon, collects_distances=True)
    state = ("mean", "std", "rng_state", "elite_actions", "elite_costs")
    return Sequential(
        SEARCH_START,
        DynamicLoop(
            "cem",
            Sequential(SAMPLE, imagine, SCORE, REFIT),
            times="num_iterations",
            limit=MAX_ITERATIONS,
            carry={name: name for name in state},
            leave=REFIT.name,
        ),
    )
