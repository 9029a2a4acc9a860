"""What a model is: nodes, sections and walks, declared once, immutable, checked and drawable."""

from mstar_rt.graph.binding import BoundLoop, BoundStream, BoundUse, BoundWalk, bind_walk
from mstar_rt.graph.chunk_policy import (
    ChunkPolicy,
    ChunkWindow,
    FixedChunkPolicy,
    LeftContextChunkPolicy,
    ReceptiveFieldChunkPolicy,
    SlidingWindowChunkPolicy,
)
from mstar_rt.graph.drawing import draw
from mstar_rt.graph.edge import GraphEdge, StreamingGraphEdge
from mstar_rt.graph.node import GraphNode, NodeUse
from mstar_rt.graph.section import DynamicLoop, Loop, Parallel, Section, Sequential, StreamLoop
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, Streamed, WalkInput
from mstar_rt.graph.streaming import StreamBuffer, StreamChunk, num_chunks
from mstar_rt.graph.walk import Walk
from mstar_rt.graph.walk_graph import WalkGraph

__all__ = [
    "BoundLoop", "BoundStream", "BoundUse", "BoundWalk", "Carried", "ChunkPolicy", "ChunkWindow", "Collected",
    "DynamicLoop", "FixedChunkPolicy", "GraphEdge", "GraphNode", "LastValue", "LeftContextChunkPolicy", "Loop",
    "NodeOutput", "NodeUse", "Parallel", "ReceptiveFieldChunkPolicy", "Section", "Sequential",
    "SlidingWindowChunkPolicy", "Source", "StreamBuffer", "StreamChunk", "StreamLoop", "Streamed",
    "StreamingGraphEdge", "Walk", "WalkGraph", "WalkInput", "bind_walk", "draw", "num_chunks",
]  # fmt: skip
