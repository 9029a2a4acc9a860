"""The graph of pi0.5 and pi0, and their walks. No torch.

    act            images, instruction, state -> a chunk of actions
    act_anytime    the same; where the budget asks for it, in fewer steps of the flow

What flows, per request, with M tokens of context, H actions of D numbers (the network's, D is at least the robot's A):

    prompt [L] int64               its tokens: the instruction and, for pi0.5, the state as text
    normalised_state [D]           pi0 only, what its state token is made of
    image_tokens [C P, W]          of the C cameras that the request has, in the order of the declaration; in the
                                   dtype of the weights
    num_context []                 tokens in the cache; the suffix begins behind them
    x [H, D]                       noise at time 1, actions at time 0
    previous [H, D]                normalised, relative to the new state, held; or [0, D]: nothing to go on from
    guidance [H]                   how much each of them counts; or [0]
    times [n]                      of the flow, at which the network is asked: as many as the request has steps

The context is in the cache once. Every denoise step sees it, and leaves nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from policies.anytime.walks import ANYTIME_TASK, PLAIN_TASK, may_end_early, pace_node

CACHE = "context"
CONTEXT = "context"
"""The label of a request's sequence."""


CHUNKING_SLOTS = ("previous", "guidance")


def build_graph(cameras: Sequence[str], *, has_state: bool, has_state_token: bool, max_denoise_steps: int) -> WalkGraph:
    """`cameras`: the task's inputs that take images. `has_state`: the task takes one."""
    state = ("state",) if has_state else ()
    token = ("normalised_state",) if has_state_token else ()
    prepare = GraphNode(
        "prepare", ("token_ids", *state), ("prompt", *token), doc="the prompt's tokens, and the state normalised"
    )
    see = GraphNode("see", tuple(cameras), ("image_tokens",), doc="the cameras that the request has")
    prefill = GraphNode(
        "prefill", ("image_tokens", "prompt"), ("num_context",), engine="kv_cache", cache=CACHE,
        doc="images and text into the cache, as one block",
    )  # fmt: skip
    remember_state = GraphNode(
        "remember_state", ("normalised_state", "num_context"), ("num_context",), engine="kv_cache", cache=CACHE,
        doc="the state's token behind the context",
    )  # fmt: skip
    start = GraphNode(
        "start", ("noise", "previous_actions", *state), ("x", *CHUNKING_SLOTS, "times"),
        doc="noise, and what the robot has not executed yet as the network sees it",
    )  # fmt: skip
    denoise = GraphNode(
        "denoise", ("x", "num_context", *CHUNKING_SLOTS, "times"), ("x",), engine="kv_cache", cache=CACHE,
        doc="one step of the flow from noise to actions",
    )  # fmt: skip
    finish = GraphNode(
        "finish", ("x", *state, "times"), ("actions", "num_denoise_steps"), doc="to the robot's units and dimensions"
    )
    pace = pace_node("num_context")
    context = (prefill, remember_state) if has_state_token else (prefill,)
    flow = Loop("flow", denoise, times="num_denoise_steps", limit=max_denoise_steps, carry={"x": "x"})
    begun, emit = (prepare, see, *context, start), ("actions", "num_denoise_steps")
    plain = Sequential(*begun, flow, finish)
    anytime = Sequential(*begun, pace, may_end_early(flow, denoise), finish)
    return WalkGraph(
        nodes=(*begun, pace, denoise, finish),
        walks=(Walk(PLAIN_TASK, plain, emit=emit), Walk(ANYTIME_TASK, anytime, emit=emit)),
    )
