"""What a walk's plan says of a rank is what the part of the program that runs there does, whatever the placement."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.graph import WalkGraph
from mstar_rt.placement.route import plan_walk
from mstar_rt.program import Program, compile_walk, cut
from world_models.vjepa2.walks import build_graph

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "program")]
from crossing_model import GRAPH
from random_walks import WALKS, walk_graphs

PROGRAMS = [compile_walk(graph, walk.name) for graph in (GRAPH, build_graph(8)) for walk in graph.walks]


@given(st.data())
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.walk)
def test_known_walks(program: Program, data: Any) -> None:
    _check(program, data)


@WALKS
@given(walk_graphs(), st.data())
def test_random_walks(graph: WalkGraph, data: Any) -> None:
    _check(compile_walk(graph, "w"), data)


def _check(program: Program, data: Any) -> None:
    node_ranks = tuple(data.draw(st.tuples(*(st.integers(0, 2) for _ in program.nodes))))
    plan = plan_walk(program, node_ranks, {})
    assert plan.ranks == tuple(sorted(set(node_ranks)))
    for rank in plan.ranks:
        part = cut(program, node_ranks, rank)
        assert sorted(plan.inputs[rank]) == sorted(name for name, _ in part.inputs)
        persisted = {name for port in part.ports for name in port.persists}
        assert {name for name, holder in plan.persists.items() if holder == rank} == persisted
