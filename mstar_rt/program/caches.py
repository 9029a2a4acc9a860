"""Whether the sequences of a cache are always where a node attends over them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mstar_rt.program.program import Port, Program, ProgramNode

# What happens to a value on its way from node to node: ("next" | "enter" | "exit" | "collect" | "stream", loop), and
# ("again", loop) where it goes through "next" a second time.
Way = frozenset[tuple[str, int]]


def check_caches(
    program: Program, node_ranks: Sequence[int], siblings: Collection[frozenset[str]] = frozenset()
) -> list[str]:
    """Why sequences of a cache would not be where a node attends over them; empty if they always are.

    Sequences go with a value from a node of the cache straight to a node of it. What another node passes on does not
    bring them, nor does a streaming edge. `siblings` (see graph.siblings_of) are pairs of uses that do not need each
    other's sequences.
    """
    reasons = []
    ways = _Ways(program)
    for giver in program.nodes:
        ranks = {node_ranks[node.index] for node in program.nodes if node.node.cache == giver.node.cache}
        if giver.node.cache is None or len(ranks) == 1:
            continue
        for taker in ways.lacking(giver):
            apart = node_ranks[taker.index] != node_ranks[giver.index]
            if apart and frozenset((giver.name, taker.name)) not in siblings:
                reasons.append(
                    f"node {taker.name!r} on rank {node_ranks[taker.index]} attends over cache {giver.node.cache!r} "
                    f"after {giver.name!r} on rank {node_ranks[giver.index]}, but reads nothing straight from it that "
                    f"its sequences could go along with: put both on one rank, or let {taker.name!r} read an output "
                    f"of {giver.name!r}"
                )
    return reasons


class _Ways:
    """How values get from node to node in one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._steps = [
            [step for _, port in node.outputs for step in self._from_port(program.ports[port], frozenset())]
            for node in program.nodes
        ]

    def lacking(self, giver: ProgramNode) -> list[ProgramNode]:
        """The next nodes of the cache of `giver` that may run before something came to them straight from it."""
        nodes = self._program.nodes
        late = {taker for taker, way in self._to_cache(giver) if not self._is_covered(giver, nodes[taker], way)}
        return [nodes[taker] for taker in sorted(late)]

    def _is_covered(self, giver: ProgramNode, taker: ProgramNode, way: Way) -> bool:
        """Whether what goes straight is there whenever something came along `way`.

        If each turn of both nodes follows on the turn before, all that matters is that nothing goes straight later than
        `way`. Otherwise it must be what that very turn reads.
        """
        straight = [direct for target, direct in self._steps[giver.index] if target == taker.index]
        straight = [direct for direct in straight if not _loops(direct, "stream")]
        if self._is_sequential(giver) and self._is_sequential(taker):
            return any(_loops(direct, "next") <= _loops(way, "next") for direct in straight)
        around_both = set(giver.loops) & set(taker.loops)
        same_turns = not _loops(way, "next") & around_both
        return any(
            direct == way or (same_turns and all(kind == "collect" for kind, _ in direct)) for direct in straight
        )

    def _is_sequential(self, node: ProgramNode) -> bool:
        """Whether every turn of a node follows, by what it reads, on the one before."""
        return all(self._follows_itself(node, loop) for loop in node.loops)

    def _follows_itself(self, node: ProgramNode, loop: int) -> bool:
        others = set(node.loops) - {loop}
        todo, seen = [(node.index, False)], set()
        while todo:
            at, turned = todo.pop()
            for target, way in self._steps[at]:
                nexts = _loops(way, "next")
                if nexts & others or _loops(way, "stream"):
                    continue
                step = (target, turned or loop in nexts)
                if step == (node.index, True):
                    return True
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
        return False

    def _to_cache(self, giver: ProgramNode) -> set[tuple[int, Way]]:
        """The next nodes of its cache on all ways from `giver`, with the ways."""
        found: set[tuple[int, Way]] = set()
        todo: list[tuple[int, Way]] = [(giver.index, frozenset())]
        seen = set(todo)
        while todo:
            at, way = todo.pop()
            for target, step in self._steps[at]:
                again = {("again", loop) for loop in _loops(way, "next") & _loops(step, "next")}
                reached = (target, way | step | again)
                if self._program.nodes[target].node.cache == giver.node.cache:
                    found.add(reached)
                elif reached not in seen:
                    seen.add(reached)
                    todo.append(reached)
        return found

    def _from_port(self, port: Port, way: Way) -> Iterator[tuple[int, Way]]:
        """The nodes that read what appears at `port`."""
        ports = self._program.ports
        for join, _ in port.reads:
            relay_to = self._program.joins[join].relay_to
            if relay_to is None:
                yield join, way
            else:
                yield from self._from_port(ports[relay_to], way | {("enter", ports[relay_to].loop)})
        for target in port.enters:
            yield from self._from_port(ports[target], way | {("enter", ports[target].loop)})
        for kind, targets in (("next", port.nexts), ("exit", port.exits), ("collect", port.collects)):
            for target in targets:
                yield from self._from_port(ports[target], way | {(kind, port.loop)})
        for index in port.streams:
            stream = self._program.streams[index]
            yield from self._from_port(ports[stream.chunk], way | {("stream", stream.consumer)})


def _loops(way: Way, kind: str) -> set[int]:
    return {loop for each, loop in way if each == kind}
