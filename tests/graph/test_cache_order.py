"""Walks in which nodes of one cache could overtake one another are refused; those in which all is waited for are not."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_rt.errors import GraphError
from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphNode,
    Loop,
    Parallel,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    bind_walk,
)


def kv(name: str, inputs: str, outputs: str, cache: str = "c") -> GraphNode:
    return GraphNode(name, tuple(inputs.split()), tuple(outputs.split()), engine="kv_cache", cache=cache)


def plain(name: str, inputs: str, outputs: str) -> GraphNode:
    return GraphNode(name, tuple(inputs.split()), tuple(outputs.split()))


MAP = kv("map", "x", "w")
STEP = kv("step", "y w", "y")
FIRST, SECOND = kv("first", "x", "w1"), kv("second", "x", "w2")
MIX = plain("mix", "w1 w2 y", "y")
MAKE = plain("make", "x", "item")
READ = kv("read", "items", "w")
LAST = kv("last", "w", "z")
EDGE = StreamingGraphEdge("make.item", "read.items", FixedChunkPolicy(1))
APART = "put them in different branches of a Parallel if they use different sequences"


def walk(body: Any, *emit: str, edges: tuple[StreamingGraphEdge, ...] = ()) -> WalkGraph:
    made = Walk("w", body, emit=emit, edges=edges)
    nodes = {placed.use.node.name: placed.use.node for placed in bind_walk(made).uses}
    return WalkGraph(tuple(nodes.values()), (made,))


def turns(*body: Any, carry: dict[str, str] | None = None, collect: dict[str, str] | None = None) -> Loop:
    return Loop("turn", Sequential(*body), "n", 9, carry=carry, collect=collect)


def stream(*body: Any, carry: dict[str, str] | None = None) -> Sequential:
    return Sequential(turns(MAKE), StreamLoop("reading", Sequential(*body), carry=carry))


BRANCHES = Parallel(FIRST, SECOND)

REFUSED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "one after the other": (
        Sequential(FIRST, SECOND, MIX),
        ("y",),
        f"'second' does not wait for 'first'; let 'second' read an output of 'first', directly or by way of other "
        f"nodes, or {APART}",
    ),
    "a node without outputs": (
        Sequential(kv("fill", "x", ""), FIRST),
        ("w1",),
        "'first' does not wait for 'fill'; give 'fill', which has none, an output that 'first' reads, or put them",
    ),
    "a map": (
        turns(MAP),
        ("w",),
        "in loop 'turn', 'map' does not wait for 'map' of the iteration before; carry something through 'turn' that "
        "follows from 'map' and that 'map' needs",
    ),
    "what is carried goes to another node": (
        turns(MAP, STEP, carry={"y": "y"}),
        ("y",),
        "in loop 'turn', 'map' does not wait for 'map' of the iteration before",
    ),
    "a second node of the iteration before": (
        turns(MAP.bind({"x": "w"}), STEP.bind(outputs={"y": "z"}), carry={"w": "w"}),
        ("z",),
        "in loop 'turn', 'map' does not wait for 'step' of the iteration before; carry something through 'turn' that "
        f"follows from 'step' and that 'map' needs, or {APART}",
    ),
    "branches that overtake themselves": (
        turns(BRANCHES, MIX, carry={"y": "y"}),
        ("y",),
        "in loop 'turn', 'first' does not wait for 'first' of the iteration before",
    ),
    "behind one branch only": (
        Sequential(BRANCHES, LAST.bind({"w": "w1"})),
        ("z", "w2"),
        "'last' does not wait for 'second'",
    ),
    "a loop within a loop": (
        Loop("outer", turns(MAP.bind({"x": "w"}), carry={"w": "w"}), 3),
        ("w",),
        "in loop 'outer', 'map' does not wait for 'map' of the iteration before",
    ),
    "the last value of a loop that its other node does not take part in": (
        Sequential(turns(MAP.bind({"x": "u"}, {"w": "u"}), plain("tick", "x", "w"), carry={"u": "u"}), LAST),
        ("z", "u"),
        "'last' does not wait for 'map'",
    ),
    "behind a loop that waits for the first node in its first iteration only": (
        Sequential(
            FIRST.bind(outputs={"w1": "a"}),
            turns(plain("pass", "a", "w"), plain("tick", "x", "b"), carry={"a": "b"}),
            LAST,
        ),
        ("z",),
        "'last' does not wait for 'first'",
    ),
    "a stream loop": (stream(READ), ("w",), "in loop 'reading', 'read' does not wait for 'read' of the iteration before"),
    "both ends of a stream": (
        Sequential(
            turns(kv("make", "item", "item"), carry={"item": "item"}),
            StreamLoop("reading", kv("read", "items w", "w"), carry={"w": "w"}),
        ),
        ("w",),
        "'read' does not wait for 'make'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_be_overtaken_is_refused(case: str) -> None:
    body, emit, reason = REFUSED[case]
    with pytest.raises(GraphError) as caught:
        walk(body, *emit, edges=(EDGE,) if "stream" in case else ())
    assert str(caught.value).startswith("walk 'w' leaves open in which order cache 'c' is written: " + reason)


CARRYING = MAP.bind({"x": "w"})

ACCEPTED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "by way of a node of no cache": (Sequential(FIRST, plain("tick", "w1", "w"), LAST), ("z",)),
    "caches of their own": (Sequential(FIRST, kv("second", "x", "w2", cache="d")), ("w1", "w2")),
    "branches": (BRANCHES, ("w1", "w2")),
    "branches in a loop": (
        turns(Parallel(FIRST.bind({"x": "y"}), SECOND.bind({"x": "y"})), MIX, carry={"y": "y"}),
        ("y",),
    ),
    "behind both branches": (Sequential(BRANCHES, plain("mix", "w1 w2", "w"), LAST), ("z",)),
    "before a loop, in it and behind it": (
        Sequential(FIRST.bind(outputs={"w1": "w"}), turns(CARRYING, carry={"w": "w"}), LAST),
        ("z",),
    ),
    "behind a loop by its list": (
        Sequential(turns(CARRYING, carry={"w": "w"}, collect={"w": "all"}), LAST.bind({"w": "all"})),
        ("z",),
    ),
    "a loop that may be left": (DynamicLoop("turn", MAP, "n", 9, leave="map"), ("w",)),
    "a loop that may be left behind two of the cache": (
        DynamicLoop("turn", Sequential(MAP, kv("more", "w", "v"), plain("tick", "v", "u")), "n", 9, leave="tick"),
        ("u",),
    ),
    "a loop in each iteration of one that may be left": (
        DynamicLoop(
            "outer", Sequential(turns(CARRYING, carry={"w": "w"}), plain("tick", "w", "u")), "n", 9, leave="tick"
        ),
        ("u",),
    ),
    "a map of one": (Loop("turn", MAP, 1), ("w",)),
    "a stream that carries": (stream(kv("read", "items w", "w"), carry={"w": "w"}), ("w",)),
    "a stream between two of the cache": (
        Sequential(
            FIRST,
            turns(MAKE.bind({"x": "w1"})),
            StreamLoop("reading", plain("read", "items", "w")),
            LAST,
        ),
        ("z",),
    ),
    "behind the stream of a loop of the cache": (
        Sequential(
            turns(kv("make", "item", "item"), carry={"item": "item"}),
            StreamLoop("reading", plain("read", "items", "w")),
            LAST,
        ),
        ("z",),
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_waits_is_accepted(case: str) -> None:
    body, emit = ACCEPTED[case]
    walk(body, *emit, edges=(EDGE,) if "stream" in case else ())


HEAR = plain("hear", "others", "w")
TWO = (EDGE, StreamingGraphEdge("tick.other", "hear.others", FixedChunkPolicy(1)))


@pytest.mark.parametrize("edges", [TWO, TWO[::-1]])
def test_what_one_stream_tells_holds_no_reader_of_another(edges: tuple[StreamingGraphEdge, ...]) -> None:
    """On a rank of its own 'hear' ends with its own chunks."""
    making = turns(MAKE.bind({"x": "w1"}), plain("tick", "x", "other"))
    reading = StreamLoop("reading", Parallel(plain("read", "items", "v"), HEAR))
    with pytest.raises(GraphError, match="'last' does not wait for 'first'"):
        walk(Sequential(FIRST, making, reading, LAST), "v", "z", edges=edges)


def test_all_streams_of_one_reader_tell() -> None:
    """The node that reads the first one reads the other, too, so no rank is told by that alone."""
    making = turns(MAKE.bind({"x": "w1"}), plain("tick", "x", "other"))
    read = plain("read", "items others", "v")
    edges = (EDGE, StreamingGraphEdge("tick.other", "read.others", FixedChunkPolicy(1)))
    reading = StreamLoop("reading", Parallel(read, plain("pass", "x", "w")))
    walk(Sequential(FIRST, making, reading, LAST), "v", "z", edges=edges)
