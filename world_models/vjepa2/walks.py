"""The graph of V-JEPA 2-AC and its walks. No torch.

    encode     frames -> latents
    set_goal   goal frames (or their latents) -> a goal, kept for the session
    observe    one more frame, and the action that led to it -> the session's history
    rollout    context, actions -> the latent, the pose or the distance to a goal after each step
    plan       context, goal -> actions, better with each iteration of the search

The context are T frames of the request, as frames or as latents, or the session's history. The frames before the last
one, whose actions are known, are in the cache once (`remember`); all sequences that are imagined share them.

    context [T, P, D], past_actions and past_states [T-1, 7], pose [7]    the past, and where it leads to
    cameras [T, 6], or [0, 6] if the model takes no extrinsics
    actions [N, H, 7], poses [N, H+1, 7]                                  what is imagined
    imagined [N, K, P, D]        the newest frames of each sequence, of the last of the context and those imagined from
                                 it as many as later steps need: one, unless the window will slide
    goal [G, P, D], goal_weights [G], goal_mode                           an index into planning.options.GOAL_USES
"""

from __future__ import annotations

from mstar_rt.graph import GraphNode, Section, Sequential, Walk, WalkGraph
from world_models.planning.walk import PLAN_KEEPS, PLAN_OUTPUTS, PLANNING_NODES, imagine_section, search_section

CACHE = "world"
PAST = "past"
"""The session's sequence in the cache: all frames of its history but the newest. It outlives the walk."""
KEPT_GOAL = ("kept_goal", "kept_goal_weights", "kept_goal_mode")
HISTORY = ("history_latents", "history_actions", "history_states", "history_cameras")

ENCODE = GraphNode("encode", ("frames",), ("latents",), doc="each frame alone, layer-normed")
OBSERVE = GraphNode(
    "observe", ("frames", "context_latents"), ("view",), doc="the frames of the request, encoded if need be"
)
OBSERVE_GOAL = GraphNode(
    "observe_goal",
    ("goal_frames", "goal_latents", "goal_weights", *KEPT_GOAL),
    ("goal", "goal_weights", "goal_mode"),
    doc="the goal of the request, encoded if need be, or the session's",
)
REMEMBER = GraphNode(
    "remember",
    ("context", "past_actions", "past_states", "cameras", "from_history", "num_cached"),
    ("num_remembered",),
    engine="kv_cache",
    cache=CACHE,
    doc="put the past into the cache, as far as it is not there",
)
PREDICT = GraphNode(
    "predict",
    (
        "imagined", "actions", "poses", "past_actions", "past_states", "num_remembered", "from_history", "cameras",
        "goal", "goal_weights", "goal_mode",
    ),
    ("imagined", "latent", "pose", "goal_distance"),
    engine="kv_cache",
    cache=CACHE,
    doc="one more frame of every sequence, and how far it is from the goal",
)  # fmt: skip


def build_graph(max_frames: int, use_extrinsics: bool = False) -> WalkGraph:
    """`max_frames` bounds the frames that are seen at once, and the steps of one imagination."""
    recall, extend = _recall(use_extrinsics), _extend(use_extrinsics)
    rollout_start = _rollout_start(recall)
    keep_goal = OBSERVE_GOAL.bind(outputs=dict(zip(OBSERVE_GOAL.outputs, KEPT_GOAL, strict=True)))
    imagine = imagine_section(PREDICT, max_frames)
    search = search_section(PREDICT, max_frames)
    return WalkGraph(
        nodes=(ENCODE, OBSERVE, OBSERVE_GOAL, recall, extend, REMEMBER, rollout_start, PREDICT, *PLANNING_NODES),
        walks=(
            Walk("encode", ENCODE, emit=("latents",)),
            Walk("set_goal", keep_goal, persist=KEPT_GOAL),
            Walk("observe", _observe(extend), emit=("num_frames",), persist=HISTORY),
            Walk(
                "rollout",
                Sequential(OBSERVE_GOAL, OBSERVE, rollout_start, REMEMBER, imagine),
                emit=("predict.latent", "predict.pose", "predict.goal_distance"),
            ),
            Walk(
                "plan",
                Sequential(OBSERVE_GOAL, OBSERVE, recall, REMEMBER, search),
                emit=PLAN_OUTPUTS,
                persist=PLAN_KEEPS,
            ),
        ),
    )


def _recall(use_extrinsics: bool) -> GraphNode:
    return GraphNode(
        "recall",
        (
            "view", "context_actions", "context_states", "state", *(("extrinsics",) if use_extrinsics else ()),
            *HISTORY,
        ),
        ("context", "past_actions", "past_states", "pose", "cameras", "from_history", "num_cached"),
        doc="the context: frames with their actions and poses, of the request or else of the session's history",
    )  # fmt: skip


def _rollout_start(recall: GraphNode) -> GraphNode:
    """One node, where a plan has two: a rollout of one step takes about 2 ms, and every node of it 40 us."""
    outputs = tuple(name for name in recall.outputs if name != "pose")
    return GraphNode(
        "rollout_start",
        (*recall.inputs, "actions", "states"),
        (*outputs, "poses", "imagined"),
        doc="what `recall` does, the poses along the given actions, and the frame that each sequence starts with",
    )


def _extend(use_extrinsics: bool) -> GraphNode:
    return GraphNode(
        "extend",
        ("view", "state", "executed_action", *(("extrinsics",) if use_extrinsics else ()), *HISTORY),
        (*HISTORY, "num_frames", "from_history", "num_cached"),
        doc="the session's history with one more frame, less those that leave its window",
    )


def _observe(extend: GraphNode) -> Section:
    latents, actions, states, cameras = HISTORY
    past = {"context": latents, "past_actions": actions, "past_states": states, "cameras": cameras}
    return Sequential(OBSERVE, extend, REMEMBER.bind(inputs=past))
