"""Cut a program into the parts that its ranks run.

A value lives where it was produced: that rank runs it through loops, with control of its own, and sends it to the ranks
that have a join which reads it. Inputs of the walk are given to every rank that reads them, and relays run wherever
their value is read, so nothing of these two is sent. A rank takes part in a loop if a node of it is inside; it learns
from the rank that decides which iteration is the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mstar_rt.program.program import (
    ROOT,
    Opening,
    Port,
    PortSend,
    Program,
    ProgramLoop,
    ProgramStream,
)


def ranks_of(node_ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks that run something, in order."""
    return tuple(sorted(set(node_ranks)))


def cut(program: Program, node_ranks: Sequence[int], rank: int) -> Program:
    """What `rank` runs if node i is on rank `node_ranks[i]`: the program itself if that is all of it.

    Nodes, joins, ports, loops and streams keep their indices. `inputs` lists what this rank reads of the walk's.
    """
    assert len(node_ranks) == len(program.nodes), "one rank per node of the program"
    assert rank in node_ranks, f"rank {rank} runs nothing of walk {program.walk!r}"
    if ranks_of(node_ranks) == (rank,):
        return program
    return _Cutter(program, node_ranks, rank).cut()


class Readers:
    """Who reads the values of a program's ports, given where its nodes run."""

    def __init__(self, program: Program, node_ranks: Sequence[int]) -> None:
        self._program = program
        self._node_ranks = node_ranks
        self._behind: dict[int, frozenset[int]] = {}

    def nodes_of_join(self, join: int) -> frozenset[int]:
        """The node itself, or those that a relay passes a value on to."""
        relay_to = self._program.joins[join].relay_to
        return frozenset((join,)) if relay_to is None else self.nodes_behind(relay_to)

    def nodes_at(self, port: int) -> frozenset[int]:
        """The nodes that read this port."""
        return _union(self.nodes_of_join(join) for join, _ in self._program.ports[port].reads)

    def nodes_behind(self, port: int) -> frozenset[int]:
        """The same, with those that read it in iteration 0 of a loop that it enters."""
        if port not in self._behind:
            entered = [self.nodes_behind(target) for target in self._program.ports[port].enters]
            self._behind[port] = _union([self.nodes_at(port), *entered])
        return self._behind[port]

    def ranks_of_join(self, join: int) -> set[int]:
        return {self._node_ranks[node] for node in self.nodes_of_join(join)}

    def ranks_behind(self, port: int) -> set[int]:
        return {self._node_ranks[node] for node in self.nodes_behind(port)}


class _Cutter:
    def __init__(self, program: Program, node_ranks: Sequence[int], rank: int) -> None:
        self.program = program
        self.node_ranks = node_ranks
        self.rank = rank
        self.readers = Readers(program, node_ranks)
        self.is_here = [rank in self.readers.ranks_of_join(join) for join in range(len(program.joins))]
        self.loop_ranks = [
            {node_ranks[node.index] for node in program.nodes if loop.index in node.loops} for loop in program.loops
        ]
        self.origins = _origins(program)

    def cut(self) -> Program:
        program = self.program
        return replace(
            program,
            loops=tuple(self._loop(loop) for loop in program.loops),
            ports=tuple(self._port(port) for port in program.ports),
            inputs=tuple((name, port) for name, port in program.inputs if self._is_read_here(port)),
            openings=tuple(self._opening(scope) for scope in range(ROOT, len(program.loops))),
            num_items=self._num_items(ROOT),
            streams=tuple(self._stream(stream) for stream in program.streams),
        )

    def _is_read_here(self, port: int) -> bool:
        return self.rank in self.readers.ranks_behind(port)

    def _port(self, port: Port) -> Port:
        reads = tuple((join, slot) for join, slot in port.reads if self.is_here[join])
        enters = tuple(target for target in port.enters if self._is_read_here(target))
        origin = self.origins.get(port.index)
        if origin is None:
            return replace(port, reads=reads, enters=enters)
        if self.node_ranks[origin] != self.rank:
            nothing: tuple[int, ...] = ()
            return replace(
                port, reads=reads, enters=(), nexts=(), exits=(), collects=nothing, emits=(), persists=(), streams=()
            )
        return replace(
            port,
            reads=reads,
            enters=enters,
            nexts=tuple(target for target in port.nexts if self._is_read_here(target)),
            sends=tuple(self._sends(origin, port.index, ())),
            next_sends=tuple(send for target in port.nexts for send in self._sends(origin, target, ())),
        )

    def _sends(self, origin: int, port: int, zeros: tuple[int, ...]) -> list[PortSend]:
        """Where a value of the node `origin` goes that appears at `port`, and enters loops from there."""
        nodes = self.readers.nodes_at(port)
        sends = []
        for rank in sorted({self.node_ranks[node] for node in nodes} - {self.rank}):
            cache = self.program.nodes[origin].node.cache
            attending = {self.program.nodes[node].node.cache for node in nodes if self.node_ranks[node] == rank}
            sends.append(PortSend(rank, port, zeros, (cache,) if cache is not None and cache in attending else ()))
        for target in self.program.ports[port].enters:
            sends += self._sends(origin, target, (*zeros, 0))
        return sends

    def _loop(self, loop: ProgramLoop) -> ProgramLoop:
        if self.rank not in self.loop_ranks[loop.index]:
            return replace(loop, num_items=0, frees=())
        deciders = self._deciders(loop)
        is_told = bool(deciders) and self.rank not in deciders
        tells = tuple(sorted(self.loop_ranks[loop.index] - set(deciders))) if deciders[:1] == [self.rank] else ()
        return replace(
            loop,
            num_items=self._num_items(loop.index) + is_told,
            frees=tuple((join, slot) for join, slot in loop.frees if self.is_here[join]),
            tells=tells,
        )

    def _deciders(self, loop: ProgramLoop) -> list[int]:
        """The ranks that know by themselves how a dynamic loop goes on; the first one tells all others.

        In a stream loop that is every rank with a reader: the streams of one loop form their chunks alike.
        """
        if loop.is_stream:
            readers = [stream.reader_node for stream in self.program.streams if stream.consumer == loop.index]
        else:
            readers = [node.index for node in self.program.nodes if node.leaves == loop.index]
        return [self.node_ranks[node] for node in readers]

    def _num_items(self, scope: int) -> int:
        nodes = sum(
            (node.loops[-1] if node.loops else ROOT) == scope and self.node_ranks[node.index] == self.rank
            for node in self.program.nodes
        )
        loops = sum(loop.parent == scope and self.rank in self.loop_ranks[loop.index] for loop in self.program.loops)
        streams = sum(
            self.program.loops[stream.producer].parent == scope and self._sends_items(stream)
            for stream in self.program.streams
        )
        return nodes + loops + streams

    def _sends_items(self, stream: ProgramStream) -> bool:
        return self.node_ranks[stream.source_node] == self.rank != self.node_ranks[stream.reader_node]

    def _opening(self, scope: int) -> Opening:
        opening = self.program.openings[scope + 1]
        inner = [loop for loop in opening.loops if self.rank in self.loop_ranks[loop]]
        return Opening(
            joins=tuple(join for join in opening.joins if self.is_here[join]),
            loops=tuple(loop for loop in inner if self._opening(loop) != Opening()),
        )

    def _stream(self, stream: ProgramStream) -> ProgramStream:
        source, reader = self.node_ranks[stream.source_node], self.node_ranks[stream.reader_node]
        alike = [other for other in self.program.streams if other.consumer == stream.consumer]
        read_here = [other.index for other in alike if self.node_ranks[other.reader_node] == self.rank]
        return replace(
            stream,
            decides=read_here[:1] == [stream.index],
            source_rank=None if source == self.rank else source,
            reader_rank=None if reader == self.rank else reader,
        )


def _origins(program: Program) -> dict[int, int]:
    """The node that gives the values of every port: all but walk inputs, chunks, and carries, which have two."""
    origins = {port: node.index for node in program.nodes for _, port in node.outputs}
    todo = list(origins)
    while todo:
        port = program.ports[todo.pop()]
        for target in (*port.exits, *port.collects):
            origins[target] = origins[port.index]
            todo.append(target)
    return origins


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
