"""A walk that streams: a loop that talks feeds a codec, chunk by chunk. What the tests of streams declare."""

from __future__ import annotations

from typing import Any

from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphNode,
    Loop,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    bind_walk,
)

TALK = GraphNode("talk", ("token",), ("token", "code"))
DECODE = GraphNode("decode", ("codes", "voice"), ("audio",))
MIX = GraphNode("mix", ("audio", "level"), ("sound",))
NORM = GraphNode("norm", ("code",), ("level",))
NODES = (TALK, DECODE, MIX, NORM)
FOUR = FixedChunkPolicy(4)


def talking(body: Any = TALK, name: str = "talking") -> Loop:
    return DynamicLoop(name, body, "steps", 50, carry={"token": "token"}, leave="talk")


def edge(source: str = "talk.code", target: str = "decode.codes", **more: Any) -> StreamingGraphEdge:
    return StreamingGraphEdge(source, target, **({"policy": FOUR} | more))


def graph(body: Any, *edges: Any, emit: tuple[str, ...] = ("audio",)) -> WalkGraph:
    used = {placed.use.node for placed in bind_walk(Walk("speak", body, edges=edges)).uses}
    nodes = tuple(node for node in NODES if node in used)
    return WalkGraph(nodes, (Walk("speak", body, emit=emit, edges=edges),))


SPOKEN = Sequential(talking(), StreamLoop("codec", DECODE))
SECOND = DECODE.bind({}, {"audio": "second_audio"}, alias="second")


def in_outer(body: Any, name: str = "outer") -> Loop:
    return Loop(name, body, 2)
