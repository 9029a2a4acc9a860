"""The graph of a Diffusion Policy, and its one walk. No torch.

    act    the last few images of every camera, and states -> a chunk of actions

Every turn of the loop is a step of its own, so requests whose chunks are more and less noisy share steps, and a hundred
turns stand in nobody's way.
"""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from policies.lerobot.walks import SEE, eyes, features_of

DENOISE = GraphNode("denoise", ("latent", "condition"), ("denoised",), doc="takes some noise off")
FINISH = GraphNode("finish", ("denoised",), ("actions", "num_denoise_steps"), doc="a chunk in robot units")


def build_graph(cameras: Sequence[str], max_steps: int) -> WalkGraph:
    """`cameras` are their names, in the order in which the network takes them."""
    inputs = ("state", "noise", *map(features_of, cameras))
    doc = "what the observations come to, and the noise to begin with"
    begin = GraphNode("begin", inputs, ("condition", "latent"), doc=doc)
    denoising = Loop("denoising", DENOISE, times="num_denoise_steps", limit=max_steps, carry={"latent": "denoised"})
    return WalkGraph(
        nodes=(SEE, begin, DENOISE, FINISH),
        walks=(
            Walk("act", Sequential(eyes(cameras), begin, denoising, FINISH), emit=("actions", "num_denoise_steps")),
        ),
    )
