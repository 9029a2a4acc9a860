"""A compiled walk: flat tables with an index for everything, shared by all requests that run it.

A *port* is a place where values appear, each under a tag: the iteration vector of the loops around the port,
outermost first. A *join* waits until all its slots hold a value of one tag. Joins 0 .. num_nodes - 1 are the
nodes; the others are relays, which pass the initial value of a carry into a loop once per iteration of the
loop outside it.

The same tables describe the part of a program that one rank runs (see `cut`): all indices stay, what happens
elsewhere is left out, and what has to be told to other ranks is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from mstar_rt.graph import ChunkPolicy, GraphNode

ROOT = -1


@dataclass(frozen=True, slots=True)
class PortSend:
    """A value goes to `port` on another rank as well; `zeros` are appended to its tag: it enters loops on the way.

    `moves` are the caches whose sequences must be there before the value.
    """

    rank: int
    port: int
    zeros: tuple[int, ...]
    moves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """Where a value goes from here; everything but `kind` and `name` is an index.

    `reads` are (join, slot) pairs. `enters` are carry ports one loop further in, which get the value for
    iteration 0. The control of `loop`, the innermost loop around the port, switches a value to `nexts` (carry
    ports of the next iteration) or, in the last iteration, to `exits` (ports behind the loop). `collects` get
    the list of all iterations, `streams` the values one by one, in order. `sends` and `next_sends` do for other
    ranks what `reads`, `enters` and `nexts` do for this one.
    """

    index: int
    kind: str  # "input", "output", "carry", "exit", "collect" or "chunk"
    name: str
    depth: int
    loop: int
    reads: tuple[tuple[int, int], ...]
    enters: tuple[int, ...]
    nexts: tuple[int, ...]
    exits: tuple[int, ...]
    collects: tuple[int, ...]
    emits: tuple[str, ...]
    persists: tuple[str, ...]
    streams: tuple[int, ...] = ()
    sends: tuple[PortSend, ...] = ()
    next_sends: tuple[PortSend, ...] = ()
    leaves_run: bool = field(init=False)
    turns: bool = field(init=False)

    def __post_init__(self) -> None:
        """Summaries for the inner loop of a run: does a value go to the outside, does a loop's control switch it?"""
        turns = self.nexts or self.exits or self.collects or self.streams or self.next_sends
        object.__setattr__(self, "leaves_run", bool(self.emits or self.persists or self.sends))
        object.__setattr__(self, "turns", bool(turns))


@dataclass(frozen=True, slots=True)
class Join:
    """What has to be there before a node fires.

    `depths[i]` is the length of the tags in slot i. A slot less deep than the join is *sticky*: its value
    serves all iterations of the loops further in. `has_control` adds a last slot for the opening of an
    iteration, where no other slot would tell one iteration from the next. A relay (`relay_to` is a port)
    hands its value on instead of firing.
    """

    depth: int
    loops: tuple[int, ...]
    depths: tuple[int, ...]
    has_control: bool
    relay_to: int | None = None
    sticky: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        """`sticky` are (slot, depth) of every slot that is less deep than the join."""
        sticky = tuple((slot, depth) for slot, depth in enumerate(self.depths) if depth < self.depth)
        object.__setattr__(self, "sticky", sticky)


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """A node use. `order` is its topological position: no value flows from a higher to a lower one except by
    a carry.

    `outputs` are (slot, port) pairs; `leaves` is the DynamicLoop that this node may end, or None. `feeds` are the
    streams that its outputs go into, `drains` those that it reads.
    """

    index: int
    name: str
    node: GraphNode
    order: int
    loops: tuple[int, ...]
    slots: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    leaves: int | None
    feeds: tuple[int, ...] = ()
    drains: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramLoop:
    """`times` is None where the request parameter `param` sets it, or the chunks of a stream (`is_stream`).

    `dynamic`: a decision per iteration says whether it is the last one, taken by a node or, in a stream loop, by the
    stream. `num_items` counts nodes and loops of the body, and the decision if it comes from another rank; `tells` are
    the ranks that must be told the decisions taken here. `frees` are the (join, slot) pairs whose values nothing reads
    once a run of the loop is complete.
    """

    index: int
    name: str
    parent: int
    depth: int
    times: int | None
    param: str | None
    limit: int
    dynamic: bool
    num_items: int
    frees: tuple[tuple[int, int], ...]
    is_stream: bool = False
    tells: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramStream:
    """Items from port `source` of `source_node`, one per iteration of the loop `producer`; chunks of them to the port
    `chunk`, one per iteration of the loop `consumer`, where `reader_node` reads them.

    `decides`: it says which iteration of `consumer` is the last. Of a part of a program: `reader_rank` and
    `source_rank` are where that end is, None if on this rank.
    """

    index: int
    source: int
    source_node: int
    producer: int
    consumer: int
    chunk: int
    reader_node: int
    policy: ChunkPolicy
    max_ready_chunks: int
    decides: bool
    source_rank: int | None = None
    reader_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What waits for an iteration to open: joins with a control slot, and loops inside with such joins."""

    joins: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramEdge:
    """A path of values from a node output (or a walk input: `source` None) to an input slot of a node.

    `kinds` says what happens on the way, in order: "enter" (into iteration 0 of a loop), "next" (into the
    next iteration), "exit" (the last value leaves a loop), "collect" (the list leaves it), "invariant" (one
    value for all iterations of loops further in), "stream" (in chunks). Empty: from iteration to the same iteration.
    """

    source: int | None
    source_slot: str
    target: int
    target_slot: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """`openings[i + 1]` belongs to loop i and `openings[0]` to the walk itself. `inputs` are (name, port)
    pairs."""

    walk: str
    nodes: tuple[ProgramNode, ...]
    joins: tuple[Join, ...]
    loops: tuple[ProgramLoop, ...]
    ports: tuple[Port, ...]
    inputs: tuple[tuple[str, int], ...]
    openings: tuple[Opening, ...]
    num_items: int
    streams: tuple[ProgramStream, ...] = ()

    @cached_property
    def input_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.inputs)

    @cached_property
    def params(self) -> dict[str, int]:
        """The request parameters that set how often a loop runs, each with its largest value."""
        limits: dict[str, int] = {}
        for loop in self.loops:
            if loop.param is not None:
                limits[loop.param] = min(loop.limit, limits.get(loop.param, loop.limit))
        return limits

    @cached_property
    def edges(self) -> tuple[ProgramEdge, ...]:
        starts: list[tuple[int | None, str, int]] = [(None, name, port) for name, port in self.inputs]
        starts += [(node.index, slot, port) for node in self.nodes for slot, port in node.outputs]
        return tuple(edge for source, slot, port in starts for edge in self._edges_from(source, slot, port, ()))

    def _edges_from(
        self, source: int | None, slot: str, port_index: int, kinds: tuple[str, ...]
    ) -> Iterator[ProgramEdge]:
        port = self.ports[port_index]
        for join_index, join_slot in port.reads:
            join = self.joins[join_index]
            if join.relay_to is not None:
                yield from self._edges_from(source, slot, join.relay_to, (*kinds, "invariant", "enter"))
                continue
            sticky = ("invariant",) if join.depths[join_slot] < join.depth else ()
            yield ProgramEdge(source, slot, join_index, self.nodes[join_index].slots[join_slot], kinds + sticky)
        for kind, targets in (
            ("enter", port.enters), ("next", port.nexts), ("exit", port.exits), ("collect", port.collects),
        ):  # fmt: skip
            for target in targets:
                yield from self._edges_from(source, slot, target, (*kinds, kind))
        for stream in port.streams:
            yield from self._edges_from(source, slot, self.streams[stream].chunk, (*kinds, "stream"))
