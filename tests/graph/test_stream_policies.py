"""Chunk policies refuse arguments that make no sense, and edges refuse policies that lose items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mstar_rt.errors import GraphError
from mstar_rt.graph import (
    ChunkPolicy,
    ChunkWindow,
    FixedChunkPolicy,
    LeftContextChunkPolicy,
    ReceptiveFieldChunkPolicy,
    SlidingWindowChunkPolicy,
)
from tests.graph.speech_walk import SPOKEN, edge, graph


@dataclass(frozen=True)
class Own(ChunkPolicy):
    """A policy as a model may bring it."""

    size: int
    gap: int = 0
    back: int = 0
    ahead: int = 0  # the first window alone looks ahead
    begin: int = 0

    def window(self, index: int) -> ChunkWindow:
        first = self.begin + index * (self.size + self.gap)
        stop = first + self.size
        return ChunkWindow(first - self.back * index, first, stop, stop + (self.ahead if index == 0 else 0))


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "chunks of nothing": (lambda: FixedChunkPolicy(0), "FixedChunkPolicy has k 0, expected an integer of at least 1"),
    "half a chunk": (lambda: FixedChunkPolicy(2.5), "FixedChunkPolicy has k 2.5, expected an integer"),  # type: ignore[arg-type]
    "a truth value": (lambda: FixedChunkPolicy(True), "FixedChunkPolicy has k True, expected an integer"),
    "window of nothing": (lambda: SlidingWindowChunkPolicy(0, 1), "SlidingWindowChunkPolicy has window 0, expected"),
    "window that stands still": (lambda: SlidingWindowChunkPolicy(4, 0), "SlidingWindowChunkPolicy has stride 0, expected"),
    "window with gaps": (
        lambda: SlidingWindowChunkPolicy(4, 5),
        "SlidingWindowChunkPolicy has stride 5 over its window 4, so items between two windows would be lost: make the "
        "stride at most 4",
    ),
    "context alone": (lambda: LeftContextChunkPolicy(0, 2), "LeftContextChunkPolicy has chunk 0, expected"),
    "context of the future": (
        lambda: LeftContextChunkPolicy(2, -1),
        "LeftContextChunkPolicy has left_context -1, expected an integer of at least 0",
    ),
    "field to the left": (lambda: ReceptiveFieldChunkPolicy(-1, 0), "ReceptiveFieldChunkPolicy has left -1, expected"),
    "field to the right": (lambda: ReceptiveFieldChunkPolicy(0, -1), "ReceptiveFieldChunkPolicy has right -1, expected"),
    "no strides": (
        lambda: ReceptiveFieldChunkPolicy(1, 1, ()),
        "ReceptiveFieldChunkPolicy has strides (), expected at least one, e.g. (4, 8, 16)",
    ),
    "one number for strides": (
        lambda: ReceptiveFieldChunkPolicy(1, 1, 4),  # type: ignore[arg-type]
        "ReceptiveFieldChunkPolicy has strides 4, expected at least one, e.g. (4, 8, 16)",
    ),
    "a stride of nothing": (
        lambda: ReceptiveFieldChunkPolicy(1, 1, (4, 0)),
        "ReceptiveFieldChunkPolicy has a stride 0, expected an integer of at least 1",
    ),
    "own policy that loses items": (
        lambda: edge(policy=Own(2, gap=1)),
        "has policy Own(size=2, gap=1, back=0, ahead=0, begin=0), whose window 1 begins its new items at 3, expected 2, "
        "where those of the window before end",
    ),
    "own policy that begins late": (
        lambda: edge(policy=Own(2, begin=1)),
        "begin=1), whose window 0 begins its new items at 1, expected 0",
    ),
    "own policy that turns back": (lambda: edge(policy=Own(2, back=3)), "whose window 1 is ChunkWindow(start=-1, "),
    "own policy that looks back from ahead": (
        lambda: edge(policy=Own(2, ahead=3)),
        "whose window 1 is ChunkWindow(start=2, new_start=2, new_stop=4, stop=4), expected start <= new_start < "
        "new_stop <= stop, and neither start nor stop before those of the window before",
    ),
    "own policy that stands still": (lambda: edge(policy=Own(0)), "whose window 0 is ChunkWindow(start=0, new_start=0, "),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_reason(fault: str) -> None:
    declare, message = FAULTS[fault]
    with pytest.raises(GraphError) as error:
        declare()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_of_the_model_s_own_is_accepted() -> None:
    assert graph(SPOKEN, edge(policy=Own(3))).bound("speak").streams


def test_declarations_are_hashable_values() -> None:
    assert graph(SPOKEN, edge()) == graph(SPOKEN, edge(policy=FixedChunkPolicy(4)))
    assert len({edge(), edge(max_ready_chunks=3), edge(policy=FixedChunkPolicy(3)), edge()}) == 3
    policies = [make() for make in POLICIES for _ in range(2)]
    assert len(set(policies)) == len(POLICIES)
    assert {eval(repr(policy)) for policy in policies} == set(policies), "they print as they are written"


POLICIES: tuple[Callable[[], ChunkPolicy], ...] = (
    lambda: FixedChunkPolicy(2),
    lambda: SlidingWindowChunkPolicy(window=2, stride=2),
    lambda: LeftContextChunkPolicy(2, 0),
    lambda: LeftContextChunkPolicy(2, 2),
    lambda: ReceptiveFieldChunkPolicy(2, 0),
    lambda: ReceptiveFieldChunkPolicy(2, 0, [4, 8, 16, 32]),  # type: ignore[arg-type]
)
