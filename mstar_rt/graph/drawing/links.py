"""Which part of a walk feeds which, for drawings: values followed through loops to their producers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.drawing.captions import policy_name
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, Streamed, WalkInput


@dataclass(frozen=True)
class Link:
    """`source` is a use or, with `is_input`, an input of the walk; `target` is a use. `back`: to the next
    iteration. `policy`: in chunks of that policy."""

    source: str
    target: str
    tensor: str
    is_input: bool = False
    back: bool = False
    policy: str = ""


def links_of(bound: BoundWalk) -> list[Link]:
    """All links, without repetition, in the order in which the targets are written."""
    found: dict[Link, None] = {}
    for placed in bound.uses:
        for source in placed.inputs:
            if isinstance(source, Streamed):
                found[_stream_link(bound, source)] = None
                continue
            for producer, name, back in _producers(bound, source, False, frozenset()):
                is_input = isinstance(producer, WalkInput)
                owner = producer.name if isinstance(producer, WalkInput) else producer.use
                found[Link(owner, placed.use.name, name, is_input, back)] = None
    return list(found)


def _stream_link(bound: BoundWalk, source: Streamed) -> Link:
    stream = next(each for each in bound.streams if (each.use, each.slot) == (source.use, source.slot))
    _, tensor, _ = next(_producers(bound, stream.source, False, frozenset()))
    return Link(stream.source.use, source.use, tensor, policy=policy_name(stream.edge.policy))


def _producers(
    bound: BoundWalk, source: Source, back: bool, passed: frozenset[Source]
) -> Iterator[tuple[WalkInput | NodeOutput, str, bool]]:
    """(producer, tensor name, whether it comes from the iteration before) of everything a source may stand
    for."""
    if source in passed:
        return
    passed |= {source}
    if isinstance(source, WalkInput):
        yield source, source.name, back
    elif isinstance(source, NodeOutput):
        use = next(placed.use for placed in bound.uses if placed.use.name == source.use)
        yield source, use.tensors_out[use.node.outputs.index(source.slot)], back
    elif isinstance(source, LastValue):
        yield from _producers(bound, source.source, back, passed)
    else:
        around = next(around for around in bound.loops if around.loop.name == source.loop)
        if isinstance(source, Carried):
            _, initial, following = next(carry for carry in around.carries if carry[0] == source.name)
            yield from _producers(bound, initial, back, passed)
            yield from _producers(bound, following, True, passed)
        else:
            assert isinstance(source, Collected)
            inner = next(inner for name, inner in around.collects if name == source.name)
            for producer, _, was_back in _producers(bound, inner, back, passed):
                yield producer, f"[{source.name}]", was_back
