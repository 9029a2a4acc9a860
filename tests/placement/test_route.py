"""Replica groups and their choices, and what a route tells the conductor of each walk."""

from __future__ import annotations

import pytest

from mstar_rt.config import PlacementRule
from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.placement import PlacedModel, Placement, ReplicaGroup, WalkPlan, place

LOOK = GraphNode("look", ("frames",), ("context",))
THINK = GraphNode("think", ("context", "words"), ("thought",), engine="kv_cache", cache="notes")
SPEAK = GraphNode("speak", ("thought",), ("thought", "word"), engine="kv_cache", cache="notes")
JUDGE = GraphNode("judge", ("words_said", "words"), ("score",))
MOVE = GraphNode("move", ("context", "pose", "thought"), ("pose", "action"))

TALK = DynamicLoop("talk", SPEAK, 8, carry={"thought": "thought"}, collect={"word": "words_said"}, leave="speak")
GRAPH = WalkGraph(
    (LOOK, THINK, SPEAK, JUDGE, MOVE),
    (
        Walk("look", LOOK, persist=("context",)),
        Walk("talk", Sequential(THINK, TALK, JUDGE), emit=("word", "score"), persist=("words_said", "speak.thought")),
        Walk("act", Sequential(LOOK, Loop("acting", MOVE, 4, carry={"pose": "pose"})), emit=("action",)),
    ),
)


def placed(lifetime: str, *rules: tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]) -> Placement:
    made = [PlacementRule("m", nodes, ranks, walks) for nodes, ranks, walks in rules]
    return place({"m": PlacedModel(GRAPH, {"notes": lifetime})}, made, range(6))


ANY = ("*",)


def test_uses_of_equal_ranks_are_one_group() -> None:
    placement = placed(
        "walk", (("think", "speak"), (2, 1), ANY), (("move",), (1, 2), ANY), (("judge",), (3, 4, 5), ANY)
    )
    assert placement.groups("m") == (
        ReplicaGroup((1, 2), True, (("talk", "think"), ("talk", "speak"), ("act", "move"))),
        ReplicaGroup((3, 4, 5), False, (("talk", "judge"),)),
    )
    assert set(placement.places("m")) == {(0,), (1, 2), (3, 4, 5)}
    assert placement.ranks_of("m") == (0, 1, 2, 3, 4, 5)
    assert placement.nodes_on("m", 2) == ("think", "speak", "move")
    assert placement.nodes_on("m", 5) == ("judge",)


@pytest.mark.parametrize(
    ("nodes", "walks", "lifetime", "sticky"),
    [
        (("move",), ANY, "walk", True),  # reads what `talk` persists
        (("judge",), ANY, "session", False),
        (("look",), ("act",), "session", False),
        (("look",), ("look",), "walk", True),  # persists
        (("think",), ANY, "walk", True),  # reads what `look` persists
        (("speak",), ANY, "walk", True),  # persists out of its loop
        (("think", "speak"), ANY, "session", True),
    ],
)
def test_a_group_is_sticky_if_what_it_keeps_outlives_requests(
    nodes: tuple[str, ...], walks: tuple[str, ...], lifetime: str, sticky: bool
) -> None:
    (group,) = placed(lifetime, (nodes, (1, 2), walks)).groups("m")
    assert group.sticky is sticky


@pytest.mark.parametrize(("lifetime", "sticky"), [("walk", False), ("request", False), ("session", True)])
def test_a_cache_makes_a_group_sticky_only_with_lifetime_session(lifetime: str, sticky: bool) -> None:
    remember = GraphNode("remember", ("x",), ("y",), engine="kv_cache", cache="notes")
    model = PlacedModel(WalkGraph((remember,), (Walk("w", remember, emit=("y",)),)), {"notes": lifetime})
    (group,) = place({"m": model}, [PlacementRule("m", ranks=(0, 1))], [0, 1]).groups("m")
    assert group.sticky is sticky


def test_a_route_takes_one_rank_of_every_group() -> None:
    placement = placed("request", (("think", "speak"), (1, 2), ANY), (("judge",), (3, 4, 5), ANY))
    route = placement.route("m", (1, 2))
    assert (route.model, route.choices, route.ranks) == ("m", (1, 2), (0, 2, 5))
    assert route.walk("talk") == WalkPlan(
        node_ranks=(2, 2, 5),
        ranks=(2, 5),
        inputs={2: ("context", "words"), 5: ("words",)},
        persists={"words_said": 2, "thought": 2},
        caches={"notes": (2,)},
    )
    assert placement.route("m", (1, 2)) is route
    assert placement.route("m", (0, 2)).walk("talk").node_ranks == (1, 1, 5)


def test_inputs_go_where_they_are_read_also_through_the_carry_of_a_loop() -> None:
    plan = placed("walk", (("move",), (1,), ANY)).route("m", ()).walk("act")
    assert plan.inputs == {0: ("frames",), 1: ("pose", "thought")}
    assert plan.persists == {}


def test_a_rank_that_reads_no_input_is_there_with_none() -> None:
    plan = placed("walk", (("speak",), (1,), ANY)).route("m", ()).walk("talk")
    assert plan.inputs == {0: ("context", "words"), 1: ()}
    assert plan.persists == {"words_said": 1, "thought": 1}


def test_only_caches_that_outlive_the_walk_are_listed() -> None:
    apart = (("speak",), (1,), ANY)
    assert placed("walk", apart).route("m", ()).walk("talk").caches == {}
    assert placed("session", apart).route("m", ()).walk("talk").caches == {"notes": (0, 1)}
    assert placed("session", apart).route("m", ()).walk("act").caches == {}


def test_the_rank_whose_copy_of_a_cache_is_the_newest_comes_last() -> None:
    def ranks(think: int, speak: int) -> tuple[int, ...]:
        placement = placed("session", (("think",), (think,), ANY), (("speak",), (speak,), ANY))
        return placement.route("m", ()).walk("talk").caches["notes"]

    assert ranks(think=1, speak=2) == (1, 2)
    assert ranks(think=2, speak=1) == (2, 1)
    assert ranks(think=1, speak=1) == (1,)


def test_a_rank_comes_where_its_last_node_of_the_cache_is() -> None:
    def remember(name: str) -> GraphNode:
        return GraphNode(name, (f"to_{name}",), (f"of_{name}",), engine="kv_cache", cache="notes")

    first, second, third = (remember(name) for name in ("first", "second", "third"))
    chain = Sequential(first, second.bind({"to_second": "of_first"}), third.bind({"to_third": "of_second"}))
    model = PlacedModel(
        WalkGraph((first, second, third), (Walk("w", chain, emit=("of_third",)),)), {"notes": "request"}
    )
    placement = place({"m": model}, [PlacementRule("m", ("second",), (1,))], [0, 1])
    assert placement.route("m", ()).walk("w").caches == {"notes": (1, 0)}


def test_readers_are_all_ranks_that_any_choice_may_lead_to() -> None:
    placement = placed("walk", (("judge",), (3, 4), ANY), (("look",), (1, 2), ("act",)))
    assert placement.readers("m", ["talk"]) == {"context": (0,), "words": (0, 3, 4)}
    assert placement.readers("m", ["look", "act"]) == {"frames": (0, 1, 2), "pose": (0,), "thought": (0,)}
    assert placement.readers("m", []) == {}
