"""Something that waits for the end of what feeds it is refused: with bounded buffers it would wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mstar_rt.errors import GraphError
from mstar_rt.graph import Loop, Section, Sequential, StreamLoop, WalkGraph
from tests.graph.speech_walk import DECODE, MIX, NORM, TALK, edge, graph, talking


def wait_for_the_end(of: str) -> WalkGraph:
    """Something inside the stream loop waits for the end of the loop that feeds it."""
    mix, decode = MIX.bind({"level": "code"}), DECODE.bind({"voice": "code"})
    sections: dict[str, tuple[Section, ...]] = {
        "directly": (StreamLoop("codec", decode),),
        "elsewhere in the body": (StreamLoop("codec", Sequential(DECODE, mix)),),
        "in an inner loop": (StreamLoop("codec", Sequential(DECODE, Loop("inner", mix, 2))),),
        "through a node": (NORM, StreamLoop("codec", DECODE.bind({"voice": "level"}))),
        "as a carry": (StreamLoop("codec", decode, carry={"code": "audio"}),),
    }
    emit = "sound" if "in" in of.split() else "audio"
    return graph(Sequential(talking(), *sections[of]), edge(), emit=(emit,))


def sibling_waits() -> WalkGraph:
    """Two stream loops of one producer, the second of which waits for the end of the first."""
    second = DECODE.bind({"voice": "audio"}, {"audio": "second_audio"}, alias="second")
    body = Sequential(talking(), StreamLoop("codec", DECODE), StreamLoop("codec2", second))
    return graph(body, edge(), edge(target="second.codes"), emit=("second_audio",))


def crossed_waits() -> WalkGraph:
    """Two streams, each of whose readers waits for the end of the other's producer."""
    again = TALK.bind({"token": "word"}, {"token": "word", "code": "letter"}, alias="again")
    body = Sequential(
        talking(),
        Loop("writing", again, 9, carry={"word": "word"}),
        StreamLoop("codec", DECODE.bind({"voice": "letter"})),
        StreamLoop("codec2", DECODE.bind({"voice": "code"}, {"audio": "print"}, alias="second")),
    )
    return graph(body, edge(), edge("again.code", "second.codes"), emit=("audio", "print"))


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "waits for the end of its producer": (
        lambda: wait_for_the_end("directly"),
        "walk 'speak' could wait for ever: 'codec' waits for the end of 'talking', but 'talking' feeds 'codec', and loops "
        "tied by a stream end together: read that value behind 'codec' or make it elsewhere",
    ),
    "another node of the body waits": (
        lambda: wait_for_the_end("elsewhere in the body"),
        "'codec' waits for the end of 'talking', but 'talking' feeds 'codec'",
    ),
    "waits through a node": (
        lambda: wait_for_the_end("through a node"),
        "could wait for ever: 'codec' waits for 'norm', 'norm' waits for the end of 'talking', but 'talking' feeds 'codec'",
    ),
    "waits for an initial value": (
        lambda: wait_for_the_end("as a carry"),
        "could wait for ever: 'codec' waits for the end of 'talking'",
    ),
    "waits in an inner loop": (
        lambda: wait_for_the_end("in an inner loop"),
        "could wait for ever: 'codec' waits for the end of 'talking'",
    ),
    "waits for the list of its producer": (
        lambda: graph(
            Sequential(
                Loop("talking", TALK, 3, collect={"code": "all"}), StreamLoop("codec", DECODE.bind({"voice": "all"}))
            ),
            edge(),
        ),
        "could wait for ever: 'codec' waits for the end of 'talking'",
    ),
    "the end of a chain waits for its beginning": (
        lambda: graph(
            Sequential(
                talking(),
                StreamLoop("codec", DECODE),
                StreamLoop("mixing", MIX.bind({"level": "code"})),
            ),
            edge("decode.audio", "mix.audio"),
            edge(),
            emit=("sound",),
        ),
        "could wait for ever: 'mixing' waits for the end of 'talking', but 'codec' feeds 'mixing' and 'talking' feeds "
        "'codec', and loops",
    ),
    "waits for a sibling": (
        sibling_waits,
        "could wait for ever: 'codec2' waits for the end of 'codec', but 'talking' feeds 'codec' and 'talking' feeds "
        "'codec2', and loops tied by a stream end together",
    ),
    "two streams wait for each other": (
        crossed_waits,
        "could wait for ever: 'codec' waits for the end of 'writing', 'codec2' waits for the end of 'talking', but "
        "'talking' feeds 'codec' and 'writing' feeds 'codec2'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_reason(fault: str) -> None:
    declare, message = FAULTS[fault]
    with pytest.raises(GraphError) as error:
        declare()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
