"""The graph of the voice, and its one walk. No torch.

speak    a text -> its sentences as sound, one after the other
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Sequential, Walk, WalkGraph

BEGIN = GraphNode("begin", ("text",), ("reading",), doc="refuses what cannot be spoken, finds the first sentence")
SPEAK = GraphNode("speak", ("text", "reading"), ("audio", "next_reading"), doc="one sentence, or a piece of a long one")
FINISH = GraphNode("finish", ("next_reading",), ("reason", "num_input_tokens"), doc="why it ended")


def build_graph(max_pieces: int) -> WalkGraph:
    speaking = DynamicLoop("speaking", SPEAK, times=max_pieces, carry={"reading": "next_reading"}, leave="speak")
    walk = Walk("speak", Sequential(BEGIN, speaking, FINISH), emit=("audio", "reason", "num_input_tokens"))
    return WalkGraph(nodes=(BEGIN, SPEAK, FINISH), walks=(walk,))
