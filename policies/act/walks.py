"""The graph of an ACT policy, and its one walk. No torch.

act    an image of every camera, and the state -> a chunk of actions
"""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.graph import GraphNode, Sequential, Walk, WalkGraph
from policies.lerobot.walks import SEE, eyes, features_of


def build_graph(cameras: Sequence[str], has_state: bool) -> WalkGraph:
    """`cameras` are their names, in the order in which the network takes them."""
    state = ("state",) if has_state else ()
    act = GraphNode("act", (*state, *map(features_of, cameras)), ("actions",), doc="features -> a chunk of actions")
    return WalkGraph(nodes=(SEE, act), walks=(Walk("act", Sequential(eyes(cameras), act), emit=("actions",)),))
