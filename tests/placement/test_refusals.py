"""Placements whose caches could not follow are refused at load, with the reason; those that work are not."""

from __future__ import annotations

import pytest

from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError
from mstar_rt.graph import DynamicLoop, GraphNode, Parallel, Section, Sequential, Walk, WalkGraph
from mstar_rt.placement import PlacedModel, Placement, place

DTYPES = {0: "float32", 1: "float32", 2: "float32", 3: "float32"}


def attending(name: str, inputs: str, outputs: str) -> GraphNode:
    return GraphNode(name, tuple(inputs.split()), tuple(outputs.split()), engine="kv_cache", cache="text")


PREFILL = attending("prefill", "prompt", "token")
DECODE = attending("decode", "token", "token")
SAMPLE = GraphNode("sample", ("token",), ("token",))
JOIN = GraphNode("join", ("a", "b"), ("token",))
TALK = DynamicLoop("talk", DECODE, 8, carry={"token": "token"}, leave="decode")


def placed(
    body: Section | GraphNode,
    *rules: tuple[str, tuple[int, ...]],
    lifetime: str = "walk",
    dtypes: dict[int, str] | None = None,
    others: tuple[Walk, ...] = (),
) -> Placement:
    body = body.bind() if isinstance(body, GraphNode) else body
    walks = (Walk("w", body, emit=tuple(_last_outputs(body))), *others)
    graph = WalkGraph(tuple(_nodes(*(walk.body for walk in walks))), walks)
    made = [PlacementRule("m", (name,), ranks) for name, ranks in rules]
    return place({"m": PlacedModel(graph, {"text": lifetime})}, made, [0, 1, 2, 3], DTYPES | (dtypes or {}))


def _nodes(*sections: Section) -> dict[GraphNode, None]:
    from mstar_rt.graph.names import uses_of

    return {use.node: None for section in sections for use in uses_of(section)}


def _last_outputs(section: Section) -> list[str]:
    from mstar_rt.graph.names import uses_of

    last = list(uses_of(section))[-1]
    return [f"{last.name}.{slot}" for slot in last.node.outputs]


DIRECT = Sequential(PREFILL, TALK)
THROUGH_ANOTHER = Sequential(PREFILL, SAMPLE.bind(outputs={"token": "token"}), DECODE)


def test_prefill_and_decode_apart_with_a_value_between_them() -> None:
    assert placed(DIRECT, ("decode", (1,))).ranks_of("m") == (0, 1)
    assert placed(DIRECT, ("decode", (1, 2))).places("m") == ((0,), (1, 2))


def test_a_cache_that_cannot_follow_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        placed(THROUGH_ANOTHER, ("decode", (1,)))
    assert str(caught.value) == (
        "placement: walk 'w' of model 'm': node 'decode' on rank 1 attends over cache 'text' after 'prefill' on rank 0, "
        "but reads nothing straight from it that its sequences could go along with: put both on one rank, or let "
        "'decode' read an output of 'prefill'"
    )
    assert placed(THROUGH_ANOTHER, ("sample", (1,))).ranks_of("m") == (0, 1)


@pytest.mark.parametrize(
    ("prefill", "decode", "works"),
    [
        ((0,), (0, 1), False),  # the second replica
        ((0, 1), (0, 2), False),  # (1, 0), (0, 2) and (1, 2)
        ((2, 3), (0, 1), False),
        ((0, 1), (0, 1), True),  # one group, one choice
        ((1, 0), (0, 1), True),
        ((1,), (1,), True),
    ],
)
def test_replicas_are_refused_if_any_choice_could_not_work(
    prefill: tuple[int, ...], decode: tuple[int, ...], works: bool
) -> None:
    rules = ("prefill", prefill), ("decode", decode)
    if works:
        assert placed(THROUGH_ANOTHER, *rules)
        return
    with pytest.raises(ConfigError, match=r"node 'decode' on rank . attends over cache 'text' after 'prefill'"):
        placed(THROUGH_ANOTHER, *rules)


def test_branches_of_a_parallel_do_not_need_each_others_sequences() -> None:
    branches = Parallel(
        DECODE.bind(outputs={"token": "a"}, alias="cond"), DECODE.bind(outputs={"token": "b"}, alias="uncond")
    )
    guided = Sequential(
        PREFILL, DynamicLoop("steps", Sequential(branches, JOIN), 8, carry={"token": "token"}, leave="join")
    )
    assert placed(guided, ("uncond", (1,))).ranks_of("m") == (0, 1)
    assert placed(guided, ("cond", (2,)), ("uncond", (1,))).ranks_of("m") == (0, 1, 2)


FLOAT32_AND_BFLOAT16 = (
    "placement: cache 'text' of model 'm' moves between rank 0 \\(float32\\) and rank 1 \\(bfloat16\\); "
    "give these workers the same dtype"
)


def test_pages_do_not_change_their_dtype_on_the_way() -> None:
    with pytest.raises(ConfigError, match=FLOAT32_AND_BFLOAT16):
        placed(DIRECT, ("decode", (1,)), dtypes={1: "bfloat16"})
    with pytest.raises(ConfigError, match=FLOAT32_AND_BFLOAT16):
        placed(DIRECT, ("decode", (1, 2)), dtypes={1: "bfloat16", 2: "bfloat16"})
    assert placed(DIRECT, ("decode", (2,)), dtypes={1: "bfloat16"})


def test_replicas_answer_alike() -> None:
    sentence = (
        "placement: node 'prefill' of model 'm' has replicas on rank 0 \\(float32\\) and rank 1 \\(bfloat16\\), and "
        "answers would depend on which one is free; give these workers the same dtype"
    )
    rules = ("prefill", (0, 1)), ("decode", (0, 1))
    with pytest.raises(ConfigError, match=sentence):
        placed(DIRECT, *rules, dtypes={1: "bfloat16"})
    assert placed(DIRECT, *rules)
    assert placed(DIRECT, *rules, dtypes={0: "bfloat16", 1: "bfloat16"})


def test_values_may_go_between_dtypes() -> None:
    assert placed(THROUGH_ANOTHER, ("sample", (1,)), dtypes={1: "bfloat16"})


@pytest.mark.parametrize(("lifetime", "works"), [("walk", True), ("request", False), ("session", False)])
def test_pages_go_from_walk_to_walk_if_they_outlive_one(lifetime: str, works: bool) -> None:
    other = (Walk("other", DECODE, emit=("token",)),)
    rules = ("prefill", (0,)), ("decode", (1,))
    if works:
        assert placed(PREFILL, *rules, lifetime=lifetime, dtypes={1: "bfloat16"}, others=other)
        return
    with pytest.raises(ConfigError, match=FLOAT32_AND_BFLOAT16):
        placed(PREFILL, *rules, lifetime=lifetime, dtypes={1: "bfloat16"}, others=other)
    assert placed(PREFILL, *rules, lifetime=lifetime, others=other)
