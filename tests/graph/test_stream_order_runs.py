"""The refusal of streams that wait for themselves, against what happens: all that is accepted ends with the smallest
buffers, and all that is refused would have hung."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.errors import GraphError
from mstar_rt.graph import (
    FixedChunkPolicy,
    GraphNode,
    LeftContextChunkPolicy,
    Loop,
    ReceptiveFieldChunkPolicy,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    walk_graph,
)
from mstar_rt.program import WalkRun, compile_walk

POLICIES = (
    FixedChunkPolicy(1),
    FixedChunkPolicy(2),
    LeftContextChunkPolicy(1, 2),
    ReceptiveFieldChunkPolicy(1, 1, (1, 2)),
)
LONG = 30  # longer than all buffers together, so that what can hang does


@st.composite
def declarations(draw: Any) -> tuple[tuple[GraphNode, ...], Walk]:
    """A row of loops, each of which may read a stream from one before it and the last value of one before it."""
    nodes, loops, edges = [], [], []
    for index in range(draw(st.integers(2, 5))):
        before = st.sampled_from([None, *range(index)])
        fed_by, waits_for = draw(before), draw(before)
        streamed = () if fed_by is None else ("chunk",)
        waited = () if waits_for is None else (f"out{waits_for}",)
        node = GraphNode(f"n{index}", ("state", *streamed, *waited), (f"out{index}",))
        carry = {"state": f"out{index}"}
        if fed_by is None:
            loops.append(Loop(f"loop{index}", node, LONG, carry=carry))
        else:
            loops.append(StreamLoop(f"loop{index}", node, carry=carry))
            ends = f"n{fed_by}.out{fed_by}", f"n{index}.chunk"
            edges.append(StreamingGraphEdge(*ends, draw(st.sampled_from(POLICIES)), max_ready_chunks=1))
        nodes.append(node)
    emit = tuple(f"out{index}" for index in range(len(nodes)))
    return tuple(nodes), Walk("w", Sequential(*loops), emit=emit, edges=tuple(draw(st.permutations(edges))))


def ends(graph: WalkGraph, seed: int) -> bool:
    """Whether the walk comes to its end, when nodes complete in random order."""
    rng, program = random.Random(seed), compile_walk(graph, "w")
    run, finished = WalkRun(program), False
    ready = run.start({name: None for name, _ in program.inputs})
    while ready:
        firing = ready.pop(rng.randrange(len(ready)))
        progress = run.complete(firing, dict.fromkeys(firing.node.outputs))
        ready += progress.ready
        finished = progress.finished
    return finished


@settings(max_examples=200)
@given(declarations(), st.integers(0, 1000))
def test_what_is_accepted_ends_and_what_is_refused_would_hang(
    declaration: tuple[tuple[GraphNode, ...], Walk], seed: int
) -> None:
    nodes, walk = declaration
    with patch.object(walk_graph, "check_stream_order"):
        unchecked = WalkGraph(nodes, (walk,))
    if ends(unchecked, seed):
        WalkGraph(nodes, (walk,))
    else:
        with pytest.raises(GraphError, match="could wait for ever"):
            WalkGraph(nodes, (walk,))
