"""Every fault of a declaration is refused when it is made, in a message that names what is wrong and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mstar_rt.errors import GraphError, NotFound
from mstar_rt.graph import DynamicLoop, GraphEdge, GraphNode, Loop, Parallel, Sequential, Walk, WalkGraph

ENCODE = GraphNode("encode", ("frames",), ("latents",))
STEP = GraphNode("step", ("latents", "noise"), ("noise", "cost"))
SCORE = GraphNode("score", ("latents",), ("score",))


def graph(body: Any, emit: tuple[str, ...] = ("score",), nodes: Any = None, **walk: Any) -> WalkGraph:
    listed = nodes if nodes is not None else (ENCODE, STEP, SCORE)
    return WalkGraph(listed, (Walk("plan", body, emit=emit, **walk),))


def loop(body: Any = STEP, times: Any = 3, limit: Any = None, carry: Any = None, **more: Any) -> Loop:
    return Loop("turn", body, times, limit, carry={"noise": "noise"} if carry is None else carry, **more)


def dynamic(leave: str, body: Any = STEP) -> Loop:
    return DynamicLoop("turn", body, "n", 8, carry={"noise": "noise"}, leave=leave)


def branches() -> Sequential:
    """Two branches that both produce `latents`."""
    return Sequential(Parallel(ENCODE, ENCODE.bind(alias="encode_again")), SCORE)


EXPLICIT = GraphEdge("encode.latents", "score.latents")

FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    # names
    "unknown input slot": (
        lambda: ENCODE.bind({"frame": "x"}),
        "node 'encode' has no input 'frame', did you mean 'frames'?",
    ),
    "unknown output slot": (
        lambda: ENCODE.bind(outputs={"latent": "x"}),
        "node 'encode' has no output 'latent', did you mean 'latents'?",
    ),
    "node not in the graph": (
        lambda: graph(Sequential(ENCODE, SCORE), nodes=(ENCODE, GraphNode("scores", ("a",), ("b",)))),
        "walk 'plan' uses node 'score', which the graph does not list, did you mean 'scores'?",
    ),
    "another node of that name": (
        lambda: graph(Sequential(ENCODE, SCORE), nodes=(ENCODE, GraphNode("score", ("a",), ("b",)))),
        "walk 'plan' uses a node 'score' that is not equal to the graph's",
    ),
    "node in no walk": (
        lambda: graph(Sequential(ENCODE, SCORE)),
        "node 'step' is in no walk of the graph",
    ),
    "duplicate alias": (
        lambda: graph(Sequential(ENCODE, ENCODE, SCORE)),
        "walk 'plan' uses the name 'encode' twice",
    ),
    "duplicate node": (
        lambda: graph(ENCODE, nodes=(ENCODE, ENCODE)),
        "the graph has two nodes of the name 'encode'",
    ),
    "duplicate walk": (
        lambda: WalkGraph((ENCODE,), (Walk("w", ENCODE, emit=("latents",)), Walk("w", ENCODE))),
        "the graph has two walks of the name 'w'",
    ),
    "a name with a dot": (lambda: GraphNode("a.b", ("x",), ("y",)), "the name of a node is 'a.b'"),
    "a string for a tuple": (
        lambda: GraphNode("a", "frames", ("y",)),  # type: ignore[arg-type]
        "the inputs of node 'a' are the string 'frames', expected a tuple of names: ('frames',)",
    ),
    "the same output twice": (
        lambda: GraphNode("a", ("x",), ("y", "y")),
        "the outputs of node 'a' name 'y' twice",
    ),
    # nodes
    "unknown engine": (
        lambda: GraphNode("a", ("x",), ("y",), engine="kv_cach"),
        "node 'a' has engine 'kv_cach', did you mean 'kv_cache'?",
    ),
    "engine without cache": (
        lambda: GraphNode("a", ("x",), ("y",), engine="kv_cache"),
        "node 'a' has engine 'kv_cache' but no cache",
    ),
    "cache without engine": (
        lambda: GraphNode("a", ("x",), ("y",), cache="memory"),
        "node 'a' has cache 'memory' but engine 'stateless'",
    ),
    "node without effect": (lambda: GraphNode("a", ("x",), ()), "node 'a' has no outputs and no cache"),
    # sections
    "empty section": (Sequential, "Sequential() is empty"),
    "something else in a section": (
        lambda: Parallel("encode"),  # type: ignore[arg-type]
        "Parallel holds 'encode', expected a node or a section",
    ),
    "loop without bound": (
        lambda: loop(times="n"),
        "loop 'turn' has no bound: its times are the parameter 'n', so it needs a limit",
    ),
    "loop of zero times": (lambda: loop(times=0), "loop 'turn' has times 0, expected an integer of at least 1"),
    "loop over its limit": (lambda: loop(times=9, limit=8), "loop 'turn' runs 9 times, over its own limit 8"),
    "limit of zero": (lambda: loop(times="n", limit=0), "loop 'turn' has limit 0"),
    "carry that the body does not produce": (
        lambda: graph(Sequential(ENCODE, loop(carry={"noise": "nois"}), SCORE)),
        "walk 'plan' has loop 'turn', which carries 'nois' as 'noise', but its body gives no 'nois', "
        "did you mean 'noise'?",
    ),
    "carry that the body does not read": (
        lambda: graph(Sequential(ENCODE, loop(carry={"pose": "cost"})), emit=("cost",), nodes=(ENCODE, STEP)),
        "walk 'plan' has loop 'turn', which carries 'pose', but nothing in its body reads that",
    ),
    "collect that the body does not produce": (
        lambda: graph(Sequential(ENCODE, loop(collect={"costs": "all"}), SCORE)),
        "walk 'plan' has loop 'turn', which collects 'costs', but its body gives no 'costs', did you mean 'cost'?",
    ),
    "collect under a name of the body": (
        lambda: graph(Sequential(ENCODE, loop(collect={"cost": "noise"}), SCORE)),
        "walk 'plan' has loop 'turn', which collects 'cost' as 'noise', but it gives a tensor of that name",
    ),
    "collect that nothing reads": (
        lambda: graph(Sequential(ENCODE, loop(collect={"cost": "costs"})), emit=("cost",), nodes=(ENCODE, STEP)),
        "walk 'plan' has loop 'turn', which collects 'costs', but nothing reads, emits or persists that",
    ),
    "leave of an unknown node": (
        lambda: graph(Sequential(ENCODE, dynamic("stp"), SCORE)),
        "walk 'plan' has loop 'turn' with leave='stp', which is no node of its body, did you mean 'step'?",
    ),
    "leave of a node outside": (
        lambda: graph(Sequential(ENCODE, dynamic("encode"), SCORE)),
        "walk 'plan' has loop 'turn' with leave='encode', which is no node of its body, known: step",
    ),
    "leave of a node of an inner loop": (
        lambda: graph(Sequential(ENCODE, dynamic("step", Loop("inner", STEP, 2, carry={"noise": "noise"})), SCORE)),
        "walk 'plan' has loop 'turn' with leave='step', which is not a node that runs once per iteration "
        "but belongs to the inner loop 'inner'",
    ),
    "leave of the inner loop itself": (
        lambda: graph(Sequential(ENCODE, dynamic("inner", Loop("inner", STEP, 2, carry={"noise": "noise"})), SCORE)),
        "belongs to the inner loop 'inner'",
    ),
    # producers
    "two producers of one input": (
        lambda: graph(branches(), nodes=(ENCODE, SCORE)),
        "walk 'plan' has node 'score', which reads 'latents', with 2 producers: encode.latents and "
        'encode_again.latents; give it an explicit edge, GraphEdge("...", "score.latents")',
    ),
    "two producers of a carry": (
        lambda: graph(Sequential(ENCODE, loop(Parallel(STEP, STEP.bind(alias="step_again"))), SCORE)),
        "walk 'plan' has loop 'turn', which carries 'noise' as 'noise', with 2 producers: step.noise and "
        "step_again.noise",
    ),
    "two outputs of one name": (
        lambda: STEP.bind(outputs={"cost": "noise"}),
        "the tensors that 'step' produces name 'noise' twice",
    ),
    # edges
    "edge from an unknown node": (
        lambda: graph(branches(), edges=(GraphEdge("encod.latents", "score.latents"),)),
        "walk 'plan' has edge 'encod.latents' -> 'score.latents' from an output of an unknown node 'encod', "
        "did you mean 'encode'?",
    ),
    "edge from an unknown slot": (
        lambda: graph(branches(), edges=(GraphEdge("encode.latent", "score.latents"),)),
        "node 'encode' has no output 'latent', did you mean 'latents'?",
    ),
    "edge to an unknown node": (
        lambda: graph(branches(), edges=(GraphEdge("encode.latents", "scor.latents"),)),
        "to an unknown node 'scor', did you mean 'score'?",
    ),
    "edge to an unknown slot": (
        lambda: graph(branches(), edges=(GraphEdge("encode.latents", "score.latent"),)),
        "node 'score' has no input 'latent', did you mean 'latents'?",
    ),
    "two edges into one input": (
        lambda: graph(branches(), edges=(EXPLICIT, GraphEdge("encode_again.latents", "score.latents"))),
        "walk 'plan' has two edges into 'score.latents', an input has one producer",
    ),
    "edge backwards": (
        lambda: graph(branches(), edges=(EXPLICIT, GraphEdge("score.score", "encode.frames"))),
        "walk 'plan' has edge 'score.score' -> 'encode.frames' that flows backwards",
    ),
    "edge from a loop into itself": (
        lambda: graph(
            Sequential(ENCODE, loop(collect={"cost": "costs"}), SCORE),
            edges=(GraphEdge("turn.costs", "step.noise"),),
        ),
        "that flows backwards",
    ),
    "edge without slot": (lambda: GraphEdge("encode", "score.latents"), "an edge has the end 'encode'"),
    # effects
    "dead node that only feeds itself": (
        lambda: graph(Sequential(ENCODE, SCORE, loop())),
        "walk 'plan' has a dead node: 'step' is read only by nodes that are dead themselves",
    ),
    "dead last node": (
        lambda: graph(Sequential(ENCODE, SCORE), emit=("latents",), nodes=(ENCODE, SCORE)),
        "walk 'plan' has a dead node: nothing reads, emits or persists 'score' of 'score'",
    ),
    "dead dynamic loop": (
        lambda: graph(Sequential(ENCODE, SCORE, dynamic("step"))),
        "walk 'plan' has a dead node: 'step'",
    ),
    "emit of an unknown name": (
        lambda: graph(Sequential(ENCODE, loop(), SCORE), emit=("scores",)),
        "walk 'plan' emits 'scores', which no node of it produces, did you mean 'score'?",
    ),
    "emit of an ambiguous name": (
        lambda: graph(branches(), emit=("latents", "score"), edges=(EXPLICIT,)),
        "walk 'plan' emits 'latents', which has 2 producers, say which: encode.latents or encode_again.latents",
    ),
    "emit of two tensors of one name": (
        lambda: graph(branches(), emit=("encode.latents", "encode_again.latents"), edges=(EXPLICIT,)),
        "walk 'plan' emits two tensors named 'latents'",
    ),
    "persist of an unknown node": (
        lambda: graph(Sequential(ENCODE, loop(), SCORE), persist=("stpe.noise",)),
        "walk 'plan' persists 'stpe.noise' of an unknown node 'stpe', did you mean 'step'?",
    ),
    "persist of a walk input": (
        lambda: graph(Sequential(ENCODE, loop(), SCORE), persist=("frames",)),
        "walk 'plan' persists 'frames', which no node of it produces",
    ),
    "a string for emit": (
        lambda: Walk("plan", ENCODE, emit="latents"),  # type: ignore[arg-type]
        "walk 'plan' emits the string 'latents', expected a tuple of names: ('latents',)",
    ),
    "something else among the edges": (
        lambda: Walk("plan", ENCODE, edges=("a.b",)),  # type: ignore[arg-type]
        "walk 'plan' has 'a.b' among its edges, expected a GraphEdge",
    ),
    "no walks": (lambda: WalkGraph((ENCODE,), ()), "the graph has no walks"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_reason(fault: str) -> None:
    declare, message = FAULTS[fault]
    with pytest.raises(GraphError) as error:
        declare()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_sound_graphs_are_accepted() -> None:
    sound = graph(Sequential(ENCODE, dynamic("step"), SCORE), emit=("score", "step.cost"), persist=("noise",))
    assert sound.inputs("plan") == ("frames", "noise")
    assert sound.walk("plan").emit == ("score", "step.cost")
    assert sound.node("score") == SCORE
    assert graph(branches(), nodes=(ENCODE, SCORE), edges=(EXPLICIT,), emit=("score", "encode_again.latents"))


def test_node_that_fills_a_cache_needs_no_reader() -> None:
    prefill = GraphNode("prefill", ("tokens",), (), engine="kv_cache", cache="backbone")
    assert WalkGraph((prefill,), (Walk("fill", prefill),)).inputs("fill") == ("tokens",)


def test_node_that_may_leave_needs_no_reader_if_the_loop_matters() -> None:
    stop = GraphNode("stop", ("latents",), ("verdict",))
    body = Sequential(STEP, stop)
    around = DynamicLoop("turn", body, 4, carry={"noise": "noise"}, leave="stop")
    assert graph(around, emit=("cost",), nodes=(STEP, stop)).inputs("plan") == ("noise", "latents")


def test_unknown_walk_and_node_are_not_found() -> None:
    sound = graph(Sequential(ENCODE, SCORE), nodes=(ENCODE, SCORE))
    with pytest.raises(NotFound, match="no walk 'plam', did you mean 'plan'"):
        sound.walk("plam")
    with pytest.raises(NotFound, match="no node 'encoder', did you mean 'encode'"):
        sound.node("encoder")


def test_declarations_are_hashable_values() -> None:
    first, second = (graph(Sequential(ENCODE, loop(), SCORE.bind({"latents": "noise"}))) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert len({loop(), loop(), loop(times=4)}) == 2
