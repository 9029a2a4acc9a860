"""The flat program of a walk: parameters, edges and their kinds."""

from __future__ import annotations

import dataclasses

import pytest

from mstar_rt.errors import NotFound
from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.program import Program, compile_walk

START = GraphNode("start", ("frames",), ("mean",))
SAMPLE = GraphNode("sample", ("mean",), ("actions",))
PREDICT = GraphNode("predict", ("latent", "actions"), ("latent",))
REFIT = GraphNode("refit", ("latent", "actions"), ("mean",))
IMAGINE = DynamicLoop("imagine", PREDICT, "horizon", 32, carry={"latent": "latent"}, leave="predict")
CEM = Loop("cem", Sequential(SAMPLE, IMAGINE, REFIT), "rounds", 100, carry={"mean": "mean"}, collect={"mean": "means"})
READ = GraphNode("read", ("means",), ("best",))


def program() -> Program:
    walk = Walk("plan", Sequential(START, CEM, READ), emit=("best",))
    return compile_walk(WalkGraph((START, SAMPLE, PREDICT, REFIT, READ), (walk,)), "plan")


def test_nodes_are_in_topological_order_with_the_loops_around_them() -> None:
    nodes = program().nodes
    assert [(n.index, n.name, n.order, n.loops) for n in nodes] == [
        (0, "start", 0, ()),
        (1, "sample", 1, (0,)),
        (2, "predict", 2, (0, 1)),
        (3, "refit", 3, (0,)),
        (4, "read", 4, ()),
    ]
    assert [n.leaves for n in nodes] == [None, None, 1, None, None]


def test_edges_say_what_happens_on_the_way() -> None:
    made = program()
    names = {n.index: n.name for n in made.nodes} | {None: "input"}
    edges = {(names[e.source], e.source_slot, names[e.target], e.target_slot, e.kinds) for e in made.edges}
    assert edges == {
        ("input", "frames", "start", "frames", ()),
        ("input", "latent", "predict", "latent", ("invariant", "enter")),
        ("start", "mean", "sample", "mean", ("enter",)),
        ("sample", "actions", "predict", "actions", ("invariant",)),
        ("sample", "actions", "refit", "actions", ()),
        ("predict", "latent", "predict", "latent", ("next",)),
        ("predict", "latent", "refit", "latent", ("exit",)),
        ("refit", "mean", "sample", "mean", ("next",)),
        ("refit", "mean", "read", "means", ("collect",)),
    }


def test_parameters_have_the_smallest_limit_of_their_loops() -> None:
    assert program().params == {"rounds": 100, "horizon": 32}
    twice = Sequential(
        Loop("first", START.bind(outputs={"mean": "frames"}), "n", 9, carry={"frames": "frames"}),
        Loop("second", SAMPLE.bind({"mean": "frames"}), "n", 4, collect={"actions": "all"}),
    )
    graph = WalkGraph((START, SAMPLE), (Walk("w", twice, emit=("all",)),))
    assert compile_walk(graph, "w").params == {"n": 4}


def test_a_program_is_immutable_and_its_walk_must_exist() -> None:
    made = program()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.walk = "other"  # type: ignore[misc]
    graph = WalkGraph((START,), (Walk("plan", START, emit=("mean",)),))
    with pytest.raises(NotFound, match="no walk 'plam', did you mean 'plan'"):
        compile_walk(graph, "plam")
