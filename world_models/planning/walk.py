"""The cross-entropy method as a section of a walk, around any world model that can take one step. No torch.

    search_start -> [ sample -> [ predict ... ] -> score -> refit ] ...

Tensors, with N candidates, H steps, P patches of D numbers:

    context [T, P, D], pose [7]            latents of the frames so far, and the effector's pose at the last one
    mean, std [H, 4], rng_state [5056]     the search's state, carried from iteration to iteration
    actions [N, H, 7], poses [N, H+1, 7]   the candidates, and the pose before each action and after the last
    latent [N, P, D]                       where each candidate's imagination stands, carried from step to step
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Loop, NodeUse, Section, Sequential
from world_models.planning.options import MAX_ITERATIONS

SEARCH_START = GraphNode(
    "search_start",
    inputs=("context", "initial_mean", "warm_mean"),
    outputs=("mean", "std", "rng_state"),
    doc="the Gaussian and the random state that the search starts from",
)
SAMPLE = GraphNode(
    "sample",
    inputs=("mean", "std", "rng_state", "context", "pose"),
    outputs=("actions", "poses", "latent", "rng_state", "started_ns"),
    doc="candidate action sequences, and the poses that they lead through",
)
SCORE = GraphNode(
    "score",
    inputs=("latent", "goal_latents"),
    outputs=("costs",),
    doc="mean absolute difference of each imagined end and the goal",
)
REFIT = GraphNode(
    "refit",
    inputs=("mean", "std", "actions", "costs", "started_ns"),
    outputs=("mean", "std", "plan_actions", "plan_cost", "warm_mean"),
    doc="blend the Gaussian towards the cheapest candidates; leaves when time is up or the search converged",
)
PLANNING_NODES = (SEARCH_START, SAMPLE, SCORE, REFIT)
PLAN_OUTPUTS = ("plan_actions", "plan_cost")


def imagine_section(predict: NodeUse | GraphNode, max_horizon: int) -> Loop:
    """World-model steps for all rows of `latent` at once; `predict` leaves after the last action."""
    name = predict.name
    return DynamicLoop(
        "imagine", predict, times="rollout_horizon", limit=max_horizon, carry={"latent": "latent"}, leave=name
    )


def search_section(predict: NodeUse | GraphNode, max_horizon: int) -> Section:
    """The whole search. Upstream must provide context, pose and goal_latents, and what `predict` reads besides."""
    iteration = Sequential(SAMPLE, imagine_section(predict, max_horizon), SCORE, REFIT)
    state = {"mean": "mean", "std": "std", "rng_state": "rng_state"}
    return Sequential(
        SEARCH_START,
        DynamicLoop("cem", iteration, times="num_iterations", limit=MAX_ITERATIONS, carry=state, leave=REFIT.name),
    )
