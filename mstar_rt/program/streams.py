"""The two ends of every stream of one run: items in order and backpressure at one, chunks at the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mstar_rt.graph import StreamBuffer, StreamChunk
from mstar_rt.program.firing import Firing, Send
from mstar_rt.program.matching import Tag
from mstar_rt.program.program import Program, ProgramStream


@dataclass(slots=True)
class _Outlet:
    """Where items enter a stream, in one run of its producer. The source may run iterations below `stop`.

    `num_expected` is the number of credits that come in all, once the reader's rank has said that.
    """

    stop: int
    waiting: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    num_items: int = 0
    num_credits: int = 0
    num_expected: int | None = None


@dataclass(slots=True)
class _Inlet:
    """Where chunks are formed. `total` is the number of items, once known."""

    buffer: StreamBuffer
    waiting: dict[int, Any] = field(default_factory=dict)
    num_items: int = 0
    total: int | None = None
    num_chunks: int = 0
    num_credits: int = 0


class StreamEnds:
    """`around` names a run of a stream, by the tag of the iteration around its two loops.

    Backpressure: chunks are counted as the source is allowed to make their items, not as the items arrive. So what runs
    at the same time counts, and it makes no difference where the reader is.
    """

    def __init__(self, program: Program) -> None:
        self._streams = program.streams
        self._nodes = program.nodes
        self._outlets: list[dict[Tag, _Outlet]] = [{} for _ in program.streams]
        self._inlets: list[dict[Tag, _Inlet]] = [{} for _ in program.streams]
        self._held: dict[tuple[int, Tag], list[Firing]] = {}

    def admit(self, firing: Firing) -> bool:
        """Whether a node that feeds streams may run now; if not, the firing is kept until a credit allows it."""
        if self._may_run(firing):
            return True
        self._held.setdefault((firing.node_index, firing.iteration[:-1]), []).append(firing)
        return False

    def enter(self, stream: ProgramStream, tag: Tag, value: Any, last: bool) -> list[tuple[Tag, Any, bool]]:
        """Put an item in; returns what may go on in the order of the iterations, as (tag, value, whether the last)."""
        around = tag[:-1]
        outlet = self._outlet(stream, around)
        outlet.waiting[tag[-1]] = (value, last)
        going: list[tuple[Tag, Any, bool]] = []
        while outlet.num_items in outlet.waiting:
            going.append(((*around, outlet.num_items), *outlet.waiting.pop(outlet.num_items)))
            outlet.num_items += 1
        if going and going[-1][2] and stream.reader_rank is None:
            del self._outlets[stream.index][around]
        return going

    def push(self, stream: ProgramStream, tag: Tag, value: Any, last: bool) -> list[tuple[Tag, StreamChunk]]:
        """Take an item to the reader; returns the chunks that are formed, with the iterations that read them."""
        around, index = tag[:-1], tag[-1]
        inlet = self._inlet(stream, around)
        inlet.waiting[index] = value
        if last:
            inlet.total = index + 1
            inlet.buffer.finish(inlet.total)
        while inlet.num_items in inlet.waiting:
            inlet.buffer.push(inlet.waiting.pop(inlet.num_items))
            inlet.num_items += 1
        chunks = []
        while (chunk := inlet.buffer.take()) is not None:
            chunks.append(((*around, inlet.num_chunks), chunk))
            inlet.num_chunks += 1
            if chunk.final:
                del self._inlets[stream.index][around]
        return chunks

    def credit(self, stream: ProgramStream, around: Tag) -> list[Firing]:
        """The reader has completed a chunk; returns the firings of the source that may run for it."""
        outlet = self._outlets[stream.index].get(around)
        if outlet is None:
            return []  # the producer is over, nothing is held back
        outlet.num_credits += 1
        outlet.stop = stream.policy.window(outlet.num_credits + stream.max_ready_chunks - 1).stop
        return self._release(stream.source_node, around)

    def credit_to_send(self, stream: ProgramStream, around: Tag) -> Send | None:
        """The same where the source is on another rank, which needs no more credits once it has sent its last item."""
        inlet = self._inlets[stream.index].get(around)
        if inlet is None or inlet.total is not None:
            return None
        inlet.num_credits += 1
        return self._credit(stream, (*around, inlet.num_credits - 1), no_more=False)

    def last_credit(self, stream: ProgramStream, around: Tag) -> Send:
        """What to send when the last item arrives, before it is pushed: how many credits there were."""
        return self._credit(stream, (*around, self._inlet(stream, around).num_credits), no_more=True)

    def expect(self, stream: ProgramStream, around: Tag, num_credits: int) -> None:
        """The reader's rank has sent so many credits and sends no more."""
        self._outlets[stream.index][around].num_expected = num_credits

    def is_over(self, stream: ProgramStream, around: Tag) -> bool:
        """Whether the last message about a stream has come to the rank of its source; it is forgotten then."""
        outlet = self._outlets[stream.index][around]
        if outlet.num_credits != outlet.num_expected:
            return False
        del self._outlets[stream.index][around]
        return True

    @property
    def num_held(self) -> int:
        """Firings held back, items, and records of streams that are not over."""
        outlets = [outlet for table in self._outlets for outlet in table.values()]
        inlets = [inlet for table in self._inlets for inlet in table.values()]
        return (
            sum(map(len, self._held.values()))
            + sum(1 + len(outlet.waiting) for outlet in outlets)
            + sum(1 + len(inlet.waiting) + inlet.buffer.num_held for inlet in inlets)
        )

    def _may_run(self, firing: Firing) -> bool:
        around, turn = firing.iteration[:-1], firing.iteration[-1]
        feeds = self._nodes[firing.node_index].feeds
        return all(turn < self._outlet(self._streams[index], around).stop for index in feeds)

    def _release(self, node: int, around: Tag) -> list[Firing]:
        held = self._held.pop((node, around), [])
        free = [firing for firing in held if self._may_run(firing)]
        if len(free) < len(held):
            self._held[node, around] = [firing for firing in held if firing not in free]
        return free

    def _outlet(self, stream: ProgramStream, around: Tag) -> _Outlet:
        outlets = self._outlets[stream.index]
        if around not in outlets:
            outlets[around] = _Outlet(stream.policy.window(stream.max_ready_chunks - 1).stop)
        return outlets[around]

    def _inlet(self, stream: ProgramStream, around: Tag) -> _Inlet:
        inlets = self._inlets[stream.index]
        if around not in inlets:
            inlets[around] = _Inlet(StreamBuffer(stream.policy))
        return inlets[around]

    def _credit(self, stream: ProgramStream, tag: Tag, no_more: bool) -> Send:
        assert stream.source_rank is not None
        return Send(stream.source_rank, "credit", stream.index, tag, flag=no_more)
