"""What names resolve to."""

from __future__ import annotations

from typing import Any

from mstar_rt.graph import (
    Carried,
    Collected,
    GraphEdge,
    GraphNode,
    LastValue,
    Loop,
    NodeOutput,
    Parallel,
    Sequential,
    Source,
    Walk,
    WalkInput,
    bind_walk,
)

A = GraphNode("a", ("x",), ("y",))
B = GraphNode("b", ("y",), ("z",))
JOIN = GraphNode("join", ("left", "right"), ("both",))


def sources(body: Any, **walk: Any) -> dict[str, tuple[Source, ...]]:
    return {placed.use.name: placed.inputs for placed in bind_walk(Walk("w", body, **walk)).uses}


def test_nearest_upstream_output_wins() -> None:
    found = sources(Sequential(A, A.bind(alias="again"), B))
    assert found["a"] == found["again"] == (WalkInput("x"),)
    assert found["b"] == (NodeOutput("again", "y"),)


def test_branches_do_not_see_one_another() -> None:
    found = sources(Sequential(Parallel(A, B), JOIN.bind({"left": "y", "right": "z"})))
    assert found["b"] == (WalkInput("y"),)
    assert found["join"] == (NodeOutput("a", "y"), NodeOutput("b", "z"))


def test_renaming_binds_by_tensor_name() -> None:
    found = sources(Sequential(A.bind(outputs={"y": "features"}), B.bind({"y": "features"})))
    assert found["b"] == (NodeOutput("a", "y"),)


def test_explicit_edge_overrides_names() -> None:
    body = Sequential(A, A.bind(alias="again"), B)
    assert sources(body, edges=(GraphEdge("a.y", "b.y"),))["b"] == (NodeOutput("a", "y"),)


def test_inside_a_loop_carried_names_and_invariants() -> None:
    body = Loop("turn", Sequential(A, B), 3, carry={"x": "z"})
    assert sources(body) == {"a": (Carried("turn", "x"),), "b": (NodeOutput("a", "y"),)}
    assert sources(Sequential(A, Loop("turn", B, 3)))["b"] == (NodeOutput("a", "y"),)


def test_behind_a_loop_last_values_and_lists() -> None:
    inner = Loop("inner", A, 3, carry={"x": "y"})
    outer = Loop("outer", inner, 2, collect={"y": "ys"})
    found = sources(Sequential(outer, JOIN.bind({"left": "y", "right": "ys"})))
    last = LastValue("inner", NodeOutput("a", "y"))
    assert found["join"] == (LastValue("outer", last), Collected("outer", "ys"))


def test_carried_name_means_the_value_before_the_loop_again_behind_it() -> None:
    start = GraphNode("start", ("seed",), ("x",))
    found = sources(Sequential(start, Loop("turn", A, 3, carry={"x": "y"}), A.bind(alias="after")))
    assert found["after"] == (NodeOutput("start", "x"),)


def test_inputs_are_listed_once_in_reading_order() -> None:
    bound = bind_walk(Walk("w", Sequential(JOIN, A, JOIN.bind({"left": "x"}, {"both": "c"}, alias="second"))))
    assert bound.inputs == ("left", "right", "x")
