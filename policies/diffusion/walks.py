"""The graph of a Diffusion Policy, and its walks. No torch.

    act            the last few images of every camera, and states -> a chunk of actions
    act_anytime    the same; where the budget asks for it, in fewer turns

`times` [n] are the steps of training that the n turns of a request undo.

Every turn of the loop is a step of its own, so requests whose chunks are more and less noisy share steps, and a hundred
turns stand in nobody's way.
"""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from policies.anytime.walks import ANYTIME_TASK, PLAIN_TASK, may_end_early, pace_node
from policies.lerobot.walks import SEE, eyes, features_of

DENOISE = GraphNode("denoise", ("latent", "condition", "times"), ("denoised",), doc="takes some noise off")
FINISH = GraphNode("finish", ("denoised", "times"), ("actions", "num_denoise_steps"), doc="a chunk in robot units")
PACE = pace_node("latent")
EMIT = ("actions", "num_denoise_steps")


def build_graph(cameras: Sequence[str], max_steps: int) -> WalkGraph:
    """`cameras` are their names, in the order in which the network takes them."""
    inputs = ("state", "noise", *map(features_of, cameras))
    doc = "what the observations come to, and the noise to begin with"
    begin = GraphNode("begin", inputs, ("condition", "latent", "times"), doc=doc)
    denoising = Loop("denoising", DENOISE, times="num_denoise_steps", limit=max_steps, carry={"latent": "denoised"})
    plain = Sequential(eyes(cameras), begin, denoising, FINISH)
    anytime = Sequential(eyes(cameras), begin, PACE, may_end_early(denoising, DENOISE), FINISH)
    return WalkGraph(
        nodes=(SEE, begin, PACE, DENOISE, FINISH),
        walks=(Walk(PLAIN_TASK, plain, emit=EMIT), Walk(ANYTIME_TASK, anytime, emit=EMIT)),
    )
