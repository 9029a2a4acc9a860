"""Streams that cannot work are refused when they are declared, in a message that names what is wrong and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mstar_rt.errors import GraphError
from mstar_rt.graph import (
    FixedChunkPolicy,
    GraphEdge,
    LastValue,
    Loop,
    NodeOutput,
    Parallel,
    Sequential,
    Streamed,
    StreamLoop,
    Walk,
    WalkInput,
)
from tests.graph.speech_walk import DECODE, FOUR, MIX, NORM, SECOND, SPOKEN, TALK, edge, graph, in_outer, talking

FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    # the edge alone
    "end without slot": (lambda: edge("talk"), "a streaming edge has the end 'talk', expected 'node.slot'"),
    "no policy": (
        lambda: edge(policy=4),
        "the streaming edge 'talk.code' -> 'decode.codes' has policy 4, expected a ChunkPolicy, e.g. FixedChunkPolicy(4)",
    ),
    "policy not made": (lambda: edge(policy=FixedChunkPolicy), "expected a ChunkPolicy, e.g. FixedChunkPolicy(4)"),
    "no ready chunk": (lambda: edge(max_ready_chunks=0), "has max_ready_chunks 0, expected an integer of at least 1"),
    "half a ready chunk": (lambda: edge(max_ready_chunks=0.5), "has max_ready_chunks 0.5, expected an integer"),
    # names
    "unknown source": (
        lambda: graph(SPOKEN, edge("tall.code")),
        "walk 'speak' has edge 'tall.code' -> 'decode.codes' from an output of an unknown node 'tall', did you mean 'talk'?",
    ),
    "unknown output": (
        lambda: graph(SPOKEN, edge("talk.codes")),
        "but node 'talk' has no output 'codes', did you mean 'code'?",
    ),
    "unknown target": (
        lambda: graph(SPOKEN, edge(target="decoder.codes")),
        "walk 'speak' has edge 'talk.code' -> 'decoder.codes' to an unknown node 'decoder', did you mean 'decode'?",
    ),
    "unknown input": (
        lambda: graph(SPOKEN, edge(target="decode.code")),
        "but node 'decode' has no input 'code', did you mean 'codes'?",
    ),
    "two edges into one input": (
        lambda: graph(SPOKEN, edge(), edge()),
        "walk 'speak' has two edges into 'decode.codes', an input has one producer",
    ),
    "a plain edge into the same input": (
        lambda: graph(SPOKEN, edge(), GraphEdge("talk.code", "decode.codes")),
        "walk 'speak' has two edges into 'decode.codes', an input has one producer",
    ),
    "one edge in place of a tuple": (
        lambda: Walk("speak", SPOKEN, edges=edge()),  # type: ignore[arg-type]
        "expected a tuple of edges: write edges=(...,)",
    ),
    "something else among the edges": (
        lambda: graph(SPOKEN, FOUR),
        "walk 'speak' has FixedChunkPolicy(k=4) among its edges, expected a GraphEdge or a StreamingGraphEdge",
    ),
    # where it begins
    "from no loop": (
        lambda: graph(Sequential(TALK, StreamLoop("codec", DECODE)), edge()),
        "walk 'speak' has streaming edge 'talk.code' -> 'decode.codes' from a node that is in no loop and gives one "
        "value, use a GraphEdge",
    ),
    "from a collected list": (
        lambda: graph(
            Sequential(Loop("talking", TALK, 3, collect={"code": "all"}), StreamLoop("codec", DECODE)),
            edge("talking.all"),
        ),
        "has streaming edge 'talking.all' -> 'decode.codes' from loop 'talking', expected a node inside a loop",
    ),
    "backwards": (
        lambda: graph(Sequential(StreamLoop("codec", DECODE), talking()), edge()),
        "walk 'speak' has edge 'talk.code' -> 'decode.codes' that flows backwards",
    ),
    # where it ends
    "into no loop": (
        lambda: graph(Sequential(talking(), DECODE), edge()),
        "walk 'speak' has streaming edge 'talk.code' -> 'decode.codes' to a node that is in no StreamLoop, the walk has "
        "none: StreamLoop(name, body)",
    ),
    "into another kind of loop": (
        lambda: graph(
            Sequential(talking(), Loop("decoding", DECODE, 3), StreamLoop("codec", SECOND)),
            edge(),
            edge(target="second.codes"),
        ),
        "to a node of loop 'decoding', which is no StreamLoop, known: codec",
    ),
    "into a loop inside the stream loop": (
        lambda: graph(Sequential(talking(), StreamLoop("codec", Loop("inner", DECODE, 2))), edge()),
        "to a node of the inner loop 'inner', expected one directly inside the stream loop 'codec'",
    ),
    "stream loop without edge": (
        lambda: graph(Sequential(talking(), StreamLoop("codec", DECODE))),
        "walk 'speak' has stream loop 'codec', but no streaming edge ends inside it, give the walk one: "
        'edges=(StreamingGraphEdge("...", "...", policy),)',
    ),
    # the loops of both ends
    "within one loop": (
        lambda: graph(
            Sequential(talking(), StreamLoop("codec", Sequential(DECODE, SECOND))),
            edge(),
            edge("decode.audio", "second.codes"),
        ),
        "has streaming edge 'decode.audio' -> 'second.codes' within loop 'codec', where nodes read each other's values",
    ),
    "from outside to inside": (
        lambda: graph(talking(Sequential(TALK, StreamLoop("codec", DECODE))), edge()),
        "from loop 'talking' to 'codec', one of which is inside the other, expected two loops side by side",
    ),
    "from inside to outside": (
        lambda: graph(
            Sequential(talking(name="first"), StreamLoop("codec", Sequential(Loop("inner", NORM, 2), DECODE))),
            edge("norm.level"),
        ),
        "from loop 'inner' to 'codec', one of which is inside the other, expected two loops side by side",
    ),
    "out of a deeper loop": (
        lambda: graph(Sequential(in_outer(talking()), StreamLoop("codec", DECODE)), edge()),
        "from loop 'talking', which is in outer, to 'codec', which is in no loop, expected the same loops around both",
    ),
    "from one loop's inside to another's": (
        lambda: graph(Sequential(in_outer(talking()), in_outer(StreamLoop("codec", DECODE), "other")), edge()),
        "from loop 'talking', which is in outer, to 'codec', which is in other, expected the same loops around both",
    ),
    "fed by two loops": (
        lambda: graph(
            Sequential(
                talking(), Loop("norming", NORM.bind({"code": "raw"}), 3), StreamLoop("codec", Parallel(DECODE, SECOND))
            ),
            edge(),
            edge("norm.level", "second.codes"),
        ),
        "walk 'speak' has stream loop 'codec' fed by 'talk.code' of loop 'talking' and by 'norm.level' of loop 'norming', "
        "expected one loop: give each a stream loop of its own",
    ),
    "two policies": (
        lambda: graph(
            Sequential(talking(), StreamLoop("codec", Parallel(DECODE, SECOND))),
            edge(),
            edge(target="second.codes", policy=FixedChunkPolicy(5)),
        ),
        "walk 'speak' has stream loop 'codec' fed by 'talk.code' with FixedChunkPolicy(k=4) and by 'talk.code' with "
        "FixedChunkPolicy(k=5), expected equal policies",
    ),
    # effects
    "dead reader": (
        lambda: graph(Sequential(talking(), StreamLoop("codec", DECODE)), edge(), emit=("code",)),
        "walk 'speak' has a dead node: nothing reads, emits or persists 'audio' of 'decode'",
    ),
    "dead producer": (
        lambda: graph(
            Sequential(talking(), StreamLoop("codec", DECODE), NORM.bind({"code": "x"})), edge(), emit=("level",)
        ),
        "walk 'speak' has a dead node: 'talk' is read only by nodes that are dead themselves",
    ),
    "dead producer of a dead reader": (
        lambda: graph(
            Sequential(talking(), Loop("norming", NORM, 3), StreamLoop("codec", DECODE)),
            edge("norm.level"),
            emit=("code",),
        ),
        "walk 'speak' has a dead node: 'norm' is read only by nodes that are dead themselves",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_reason(fault: str) -> None:
    declare, message = FAULTS[fault]
    with pytest.raises(GraphError) as error:
        declare()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_stream_is_bound_to_its_loops_and_slots() -> None:
    the_edge = edge()
    bound = graph(SPOKEN, the_edge).bound("speak")
    (stream,) = bound.streams
    assert (stream.edge, stream.source) == (the_edge, NodeOutput("talk", "code"))
    assert (stream.producer_loop, stream.consumer_loop) == ("talking", "codec")
    assert (stream.use, stream.slot) == ("decode", "codes")
    decode = next(placed for placed in bound.uses if placed.use.name == "decode")
    assert decode.inputs == (Streamed("codec", "decode", "codes"), WalkInput("voice"))
    assert bound.loops_around(decode.inputs[0]) == ("codec",)
    assert bound.inputs == ("token", "voice"), "what a streaming edge feeds is no input of the walk"
    assert [each.loop.is_stream for each in bound.loops] == [False, True]


def test_chains_of_streams_are_bounded_by_their_source() -> None:
    body = Sequential(talking(), StreamLoop("codec", DECODE), StreamLoop("codec2", SECOND))
    bound = graph(body, edge(), edge("decode.audio", "second.codes"), emit=("second_audio",)).bound("speak")
    assert [bound.max_times(each.loop.name) for each in bound.loops] == [50, 51, 52]


def test_values_behind_a_stream_loop_are_those_of_its_last_chunk() -> None:
    body = Sequential(talking(), StreamLoop("codec", DECODE), MIX.bind({"level": "code"}))
    bound = graph(body, edge(), emit=("sound",)).bound("speak")
    mix = next(placed for placed in bound.uses if placed.use.name == "mix")
    assert mix.inputs == (
        LastValue("codec", NodeOutput("decode", "audio")),
        LastValue("talking", NodeOutput("talk", "code")),
    )


SOUND: dict[str, Callable[[], Any]] = {
    "branches of a Parallel": lambda: graph(Parallel(talking(), StreamLoop("codec", DECODE)), edge()),
    "two readers in one stream loop": lambda: graph(
        Sequential(talking(), StreamLoop("codec", Parallel(DECODE, SECOND))),
        edge(), edge("talk.token", "second.codes"), emit=("audio", "second_audio"),
    ),
    "one source, two stream loops, two policies": lambda: graph(
        Sequential(talking(), StreamLoop("codec", DECODE), StreamLoop("codec2", SECOND)),
        edge(), edge(target="second.codes", policy=FixedChunkPolicy(7)), emit=("audio", "second_audio"),
    ),
    "a stream inside a loop": lambda: graph(
        in_outer(Sequential(talking(), StreamLoop("codec", DECODE, collect={"audio": "all"}))), edge(), emit=("all",)
    ),
    "a stream per iteration whose end the next one carries": lambda: graph(
        Loop("outer", Sequential(talking(), StreamLoop("codec", DECODE.bind({"voice": "v"}))), 2, carry={"v": "audio"}),
        edge(),
    ),
    "a stream inside a stream": lambda: graph(
        Sequential(
            talking(),
            StreamLoop("codec", Sequential(
                DECODE, Loop("inner", NORM.bind({"code": "audio"}), 3), StreamLoop("codec2", SECOND)
            )),
        ),
        edge(), edge("norm.level", "second.codes"), emit=("second_audio",),
    ),
    "a carry and an inner loop": lambda: graph(
        Sequential(talking(), StreamLoop("codec", Sequential(
            DECODE.bind({"voice": "v"}), Loop("inner", NORM.bind({"code": "audio"}), 2)), carry={"v": "level"},
        )),
        edge(), emit=("level",),
    ),
    "the end of a loop that no stream ties": lambda: graph(
        Sequential(Loop("norming", NORM, 3), talking(), StreamLoop("codec", DECODE.bind({"voice": "level"}))), edge()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_streams_are_accepted(name: str) -> None:
    assert SOUND[name]().bound("speak").streams
