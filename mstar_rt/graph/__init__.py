"""What a model is: nodes, sections and walks, declared once, immutable, checked and drawable."""

from mstar_rt.graph.binding import BoundLoop, BoundUse, BoundWalk, bind_walk
from mstar_rt.graph.drawing import draw
from mstar_rt.graph.node import GraphEdge, GraphNode, NodeUse
from mstar_rt.graph.section import DynamicLoop, Loop, Parallel, Section, Sequential
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, WalkInput
from mstar_rt.graph.walk import Walk
from mstar_rt.graph.walk_graph import WalkGraph

__all__ = [
    "BoundLoop", "BoundUse", "BoundWalk", "Carried", "Collected", "DynamicLoop", "GraphEdge", "GraphNode",
    "LastValue", "Loop", "NodeOutput", "NodeUse", "Parallel", "Section", "Sequential", "Source", "Walk",
    "WalkGraph", "WalkInput", "bind_walk", "draw",
]  # fmt: skip
