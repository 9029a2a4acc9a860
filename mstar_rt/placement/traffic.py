"""What travels between ranks under a placement, in words: for people who choose one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from mstar_rt.placement.placement import Placement, Ranks
from mstar_rt.placement.route import persisting_nodes
from mstar_rt.program import Crossing, Program, ProgramLoop, ProgramStream, crossings


@dataclass(frozen=True)
class Transfer:
    """`what` goes from one of `from_ranks` to one of `to_ranks`, which of them the choice of replicas says."""

    what: str
    from_ranks: Ranks
    to_ranks: Ranks
    when: str


def walk_transfers(placement: Placement, model: str, walk: str) -> list[Transfer]:
    """What goes from rank to rank while the walk runs: values, stream items, decisions of loops and credits."""
    program, use_ranks = placement.program(model, walk), placement.use_ranks(model, walk)
    # Uses of equal ranks choose together, so each set of ranks stands for one rank.
    kinds = list(dict.fromkeys(use_ranks))
    targets: dict[tuple[str, Ranks, Ranks, str, str], list[str]] = {}
    for crossing in crossings(program, [kinds.index(ranks) for ranks in use_ranks]):
        source = f"{program.nodes[crossing.source].name}.{crossing.source_slot}"
        pages = f", with pages of cache {crossing.cache!r}" if crossing.cache is not None else ""
        key = (source, kinds[crossing.from_rank], kinds[crossing.to_rank], _when(program, crossing), pages)
        targets.setdefault(key, []).append(f"{program.nodes[crossing.target].name}.{crossing.target_slot}")
    values = [
        Transfer(f"{source} -> {', '.join(dict.fromkeys(ends))}", start, end, when + pages)
        for (source, start, end, when, pages), ends in targets.items()
    ]
    decisions = [decision for loop in program.loops for decision in _decisions(program, use_ranks, loop)]
    return values + decisions + [each for stream in program.streams for each in _credits(program, use_ranks, stream)]


def scope_transfers(placement: Placement, model: str, tasks: Sequence[Sequence[str]]) -> list[Transfer]:
    """What one walk leaves on a rank and another reads on another: persisted tensors and caches that outlive walks.

    `tasks` are the walks that requests run, in order.
    """
    return [*_persisted(placement, model), *_caches(placement, model, tasks)]


def _when(program: Program, crossing: Crossing) -> str:
    """How often a value goes: once for every iteration of the loops around the place where it leaves its rank."""
    loops = list(program.nodes[crossing.source].loops)
    for kind in crossing.kinds:
        if kind in ("exit", "collect"):
            loops.pop()
        elif kind != "next":
            break
    read = ", read in chunks" if "stream" in crossing.kinds else ""
    return _every(program, loops) + read


def _every(program: Program, loops: Sequence[int]) -> str:
    if not loops:
        return "once"
    innermost = program.loops[loops[-1]]
    return f"every {'chunk' if innermost.is_stream else 'iteration'} of {innermost.name!r}"


def _decisions(program: Program, use_ranks: Sequence[Ranks], loop: ProgramLoop) -> Iterable[Transfer]:
    """Who tells the other ranks of a loop whether another iteration follows; readers of one stream all know."""
    if loop.is_stream:
        deciding = [stream.reader_node for stream in program.streams if stream.consumer == loop.index]
    else:
        deciding = [node.index for node in program.nodes if node.leaves == loop.index]
    knowing = {use_ranks[node] for node in deciding}
    others = dict.fromkeys(
        use_ranks[inner.index]
        for inner in program.nodes
        if loop.index in inner.loops and use_ranks[inner.index] not in knowing
    )
    for ranks in others if deciding else ():
        node = program.nodes[deciding[0]]
        yield Transfer(
            f"{node.name}: does {loop.name!r} go on", use_ranks[node.index], ranks, _every(program, node.loops)
        )


def _credits(program: Program, use_ranks: Sequence[Ranks], stream: ProgramStream) -> Iterable[Transfer]:
    """The reader of a stream tells its source how many chunks it has done with."""
    source, reader = program.nodes[stream.source_node], program.nodes[stream.reader_node]
    start, end = use_ranks[reader.index], use_ranks[source.index]
    if start != end:
        yield Transfer(f"{reader.name}: {source.name} may go on", start, end, _every(program, reader.loops))


def _persisted(placement: Placement, model: str) -> Iterable[Transfer]:
    for left in placement.walks(model):
        for name, producer in persisting_nodes(placement.program(model, left)):
            start = placement.use_ranks(model, left)[producer]
            reading: dict[Ranks, list[str]] = {}
            for walk in placement.walks(model):
                for edge in placement.program(model, walk).edges:
                    if edge.source is None and edge.source_slot == name:
                        reading.setdefault(placement.use_ranks(model, walk)[edge.target], []).append(walk)
            for end, walks in reading.items():
                if end != start:
                    yield Transfer(f"{name}, persisted by {left!r}", start, end, _before(walks))


def _caches(placement: Placement, model: str, tasks: Sequence[Sequence[str]]) -> Iterable[Transfer]:
    walks = placement.walks(model)
    in_session = [(first, then) for first in walks for then in walks]
    in_request = [pair for task in tasks for pair in combinations(task, 2)]
    for cache, holders in _holders(placement, model).items():
        lifetime = placement.cache_lifetime(model, cache)
        readers: dict[tuple[Ranks, Ranks], list[str]] = {}
        for first, then in in_session if lifetime == "session" else in_request:
            for start, end in product(holders.get(first, ()), holders.get(then, ())):
                if start != end:
                    readers.setdefault((start, end), []).append(then)
        for (start, end), after in readers.items():
            yield Transfer(f"pages of cache {cache!r}, kept for the {lifetime}", start, end, _before(after))


def _holders(placement: Placement, model: str) -> dict[str, dict[str, list[Ranks]]]:
    """By cache that outlives walks and walk, where the nodes are that use it."""
    holders: dict[str, dict[str, list[Ranks]]] = {}
    for walk in placement.walks(model):
        for node in placement.program(model, walk).nodes:
            cache = node.node.cache
            if cache is not None and placement.cache_lifetime(model, cache) != "walk":
                ranks = placement.use_ranks(model, walk)[node.index]
                holders.setdefault(cache, {}).setdefault(walk, []).append(ranks)
    return holders


def _before(walks: Iterable[str]) -> str:
    return f"before {' or '.join(map(repr, dict.fromkeys(walks)))}"
