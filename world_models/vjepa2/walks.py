"""The graph of V-JEPA 2-AC and its walks. No torch.

    encode     frames -> latents
    set_goal   a goal frame (or its latents) -> goal_latents, kept for the session
    rollout    context, actions -> the latent and the pose after each step
    plan       context, goal -> actions, better with each iteration of the cross-entropy method

T context frames may come as frames or as latents. The frames before the last one, whose actions are known, are put
into the cache once (`remember`); all sequences that are imagined then share them.
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Section, Sequential, Walk, WalkGraph
from world_models.planning.walk import PLAN_OUTPUTS, PLANNING_NODES, imagine_section, search_section

CACHE = "world"

ENCODE = GraphNode("encode", ("frames",), ("latents",), doc="each frame alone, layer-normed")
OBSERVE = GraphNode("observe", ("frames", "context_latents"), ("context",), doc="the context, encoded if need be")
OBSERVE_GOAL = GraphNode(
    "observe_goal", ("goal_frames", "goal_latents"), ("goal_latents",), doc="the goal, encoded if need be"
)
RECALL = GraphNode(
    "recall",
    ("context", "context_actions", "context_states", "state"),
    ("past_actions", "past_states", "pose"),
    doc="actions and poses of the context frames before the last, and the canonical pose at the last",
)
REMEMBER = GraphNode(
    "remember",
    ("context", "past_actions", "past_states"),
    ("num_remembered",),
    engine="kv_cache",
    cache=CACHE,
    doc="put one frame of the past into the cache",
)
ROLLOUT_START = GraphNode(
    "rollout_start",
    ("context", "pose", "actions", "states"),
    ("poses", "latent"),
    doc="the poses along the given actions, and the last context frame for each sequence",
)
PREDICT = GraphNode(
    "predict",
    ("latent", "actions", "poses", "num_remembered"),
    ("latent", "pose"),
    engine="kv_cache",
    cache=CACHE,
    doc="one more frame of every sequence",
)


def build_graph(max_frames: int) -> WalkGraph:
    """`max_frames` bounds the context and the steps imagined from it, together."""
    return WalkGraph(
        nodes=(ENCODE, OBSERVE, OBSERVE_GOAL, RECALL, REMEMBER, ROLLOUT_START, PREDICT, *PLANNING_NODES),
        walks=(
            Walk("encode", ENCODE, emit=("latents",)),
            Walk("set_goal", OBSERVE_GOAL, persist=("goal_latents",)),
            Walk("rollout", _rollout(max_frames), emit=("predict.latent", "predict.pose")),
            Walk("plan", _plan(max_frames), emit=PLAN_OUTPUTS, persist=("warm_mean",)),
        ),
    )


def _past(max_frames: int) -> Section:
    remember = DynamicLoop("past", REMEMBER, times=max_frames, leave=REMEMBER.name)
    return Sequential(OBSERVE, RECALL, remember)


def _rollout(max_frames: int) -> Section:
    return Sequential(_past(max_frames), ROLLOUT_START, imagine_section(PREDICT, max_frames))


def _plan(max_frames: int) -> Section:
    return Sequential(OBSERVE_GOAL, _past(max_frames), search_section(PREDICT, max_frames))
