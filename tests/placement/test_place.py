"""Rules to ranks: which rule wins, what names mean, and every sentence that refuses a rule."""

from __future__ import annotations

import pytest

from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError
from mstar_rt.graph import GraphNode, Parallel, Sequential, Walk, WalkGraph
from mstar_rt.model.node_place import NodePlace
from mstar_rt.node_places import node_places
from mstar_rt.placement import PlacedModel, Placement, place

ENCODE = GraphNode("encode", ("frames",), ("latents",))
PREDICT = GraphNode("predict", ("latents",), ("out",))
BRANCH = GraphNode("branch", ("latents",), ("half",))
SUM = GraphNode("sum", ("a", "b"), ("out",))
SPEAK = GraphNode("speak", ("text",), ("audio",))

HALVES = Parallel(BRANCH.bind(outputs={"half": "a"}, alias="cond"), BRANCH.bind(outputs={"half": "b"}, alias="uncond"))
ARM = WalkGraph(
    (ENCODE, PREDICT, BRANCH, SUM),
    (
        Walk("predict", Sequential(ENCODE, PREDICT), emit=("out",)),
        Walk("guided", Sequential(ENCODE, HALVES, SUM), emit=("out",)),
        Walk("again", Sequential(ENCODE, HALVES, SUM), emit=("out",)),
    ),
)
VOICE = WalkGraph((SPEAK,), (Walk("speak", SPEAK, emit=("audio",)),))
MODELS = {"arm": PlacedModel(ARM, {}), "voice": PlacedModel(VOICE, {})}


def placed(*rules: PlacementRule, ranks: tuple[int, ...] = (0, 1, 2)) -> Placement:
    return place(MODELS, rules, ranks)


def uses(placement: Placement, walk: str, model: str = "arm") -> dict[str, tuple[int, ...]]:
    program = placement.program(model, walk)
    return {node.name: placement.use_ranks(model, walk)[node.index] for node in program.nodes}


def test_without_rules_everything_runs_on_the_lowest_rank() -> None:
    placement = placed(ranks=(3, 1))
    assert placement.ranks_of("arm") == (1,)
    assert placement.models_on(1) == ("arm", "voice")
    assert placement.models_on(3) == ()
    assert placement.nodes_on("arm", 3) == ()
    assert placement.groups("arm") == ()
    assert placement.places("arm") == ((1,),)


def test_models_on_different_ranks() -> None:
    placement = placed(PlacementRule("voice", ranks=(1,)))
    assert (placement.ranks_of("arm"), placement.ranks_of("voice")) == ((0,), (1,))
    assert (placement.models_on(0), placement.models_on(1)) == (("arm",), ("voice",))


def test_later_rules_override_earlier_ones() -> None:
    everything, encoder = PlacementRule("arm", ranks=(2,)), PlacementRule("arm", ("encode",), (1,))
    assert uses(placed(everything, encoder), "predict") == {"encode": (1,), "predict": (2,)}
    assert uses(placed(encoder, everything), "predict") == {"encode": (2,), "predict": (2,)}


def test_a_node_means_all_its_uses_and_an_alias_one() -> None:
    placement = placed(PlacementRule("arm", ("branch",), (1,)), PlacementRule("arm", ("uncond",), (2,)))
    expected = {"encode": (0,), "cond": (1,), "uncond": (2,), "sum": (0,)}
    assert uses(placement, "guided") == expected
    assert uses(placement, "again") == expected
    assert placement.nodes_on("arm", 1) == ("branch",)
    assert placement.nodes_on("arm", 2) == ("branch",)
    assert placement.nodes_on("arm", 0) == ("encode", "predict", "sum")


def test_rules_for_some_walks() -> None:
    placement = placed(
        PlacementRule("arm", ("encode", "sum"), (1,), walks=("guided", "predict")),
        PlacementRule("arm", ("cond",), (2,), walks=("again",)),
        PlacementRule("arm", ranks=(2,), walks=("predict",)),
    )
    assert uses(placement, "predict") == {"encode": (2,), "predict": (2,)}
    assert uses(placement, "guided") == {"encode": (1,), "cond": (0,), "uncond": (0,), "sum": (1,)}
    assert uses(placement, "again") == {"encode": (0,), "cond": (2,), "uncond": (0,), "sum": (0,)}
    assert placement.nodes_on("arm", 2) == ("encode", "predict", "branch")


def test_clients_are_told_where_nodes_run_and_in_which_dtype() -> None:
    placement = placed(
        PlacementRule("arm", ("encode",), (1,), walks=("guided", "predict")),
        PlacementRule("arm", ("uncond",), (1, 2), walks=("again",)),
    )
    assert node_places(placement, "arm", {0: "float32", 1: "bfloat16", 2: "bfloat16"}) == [
        NodePlace("encode", ("predict", "guided"), (1,), "bfloat16"),
        NodePlace("predict", ("predict",), (0,), "float32"),
        NodePlace("branch", ("guided", "again"), (0,), "float32"),
        NodePlace("sum", ("guided", "again"), (0,), "float32"),
        NodePlace("encode", ("again",), (0,), "float32"),
        NodePlace("branch", ("again",), (1, 2), "bfloat16"),
    ]


def test_every_walk_of_a_rule_needs_one_of_its_nodes_not_all() -> None:
    placement = placed(PlacementRule("arm", ("predict", "sum"), (1,), ("predict", "guided")))
    assert uses(placement, "predict") == {"encode": (0,), "predict": (1,)}
    assert uses(placement, "guided")["sum"] == (1,)
    assert uses(placement, "again")["sum"] == (0,)


def test_a_node_of_the_same_name_as_an_alias_wins() -> None:
    first, second = GraphNode("first", ("x",), ("y",)), GraphNode("second", ("x",), ("z",))
    swapped = Parallel(first.bind(alias="second"), second.bind(alias="first"))
    graph = WalkGraph((first, second), (Walk("w", swapped, emit=("y", "z")),))
    placement = place({"m": PlacedModel(graph, {})}, [PlacementRule("m", ("first",), (1,))], [0, 1])
    assert placement.use_ranks("m", "w") == ((1,), (0,))


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (PlacementRule("amr", ranks=(0,)), r"placement\[1\]: unknown model 'amr', did you mean 'arm'\?"),
        (PlacementRule("arm", ("encoder",), (0,)), r"model 'arm' has no node 'encoder', did you mean 'encode'\?"),
        (PlacementRule("arm", ("uncnd",), (0,)), r"model 'arm' has no node 'uncnd', did you mean 'uncond'\?"),
        (PlacementRule("arm", ("encode", "*"), (0,)), r"model 'arm' has no node '\*', known: branch, cond, "),
        (PlacementRule("arm", walks=("guide",)), r"model 'arm' has no walk 'guide', did you mean 'guided'\?"),
        (PlacementRule("arm", ranks=(7,)), r"rank 7 has no worker, the workers are \[0, 1, 2\]"),
        (PlacementRule("arm", ranks=(1, 0, 1)), "rank 1 is named twice, name every replica once"),
        (PlacementRule("arm", ranks=()), "ranks is empty, name at least one rank"),
        (PlacementRule("arm", ("sum", "sum")), "node 'sum' is named twice"),
        (PlacementRule("arm", walks=("again", "again")), "walk 'again' is named twice"),
        (
            PlacementRule("arm", ("encode", "predict"), (1,), ("guided", "again")),
            "node 'predict' is in none of the walks 'guided', 'again'; name a walk that has it",
        ),
        (
            PlacementRule("arm", ("cond",), (1,), ("guided", "predict")),
            "walk 'predict' has no node 'cond', only 'encode', 'predict'; take it out of the rule",
        ),
    ],
)
def test_rules_that_are_refused(rule: PlacementRule, sentence: str) -> None:
    good = PlacementRule("arm", ("encode",), (1,))
    with pytest.raises(ConfigError, match=sentence) as caught:
        placed(good, rule)
    assert str(caught.value).startswith("placement[1]: ")
