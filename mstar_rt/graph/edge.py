"""Explicit connections between the nodes of a walk."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import GraphError
from mstar_rt.graph.chunk_policy import ChunkPolicy, check_policy


@dataclass(frozen=True)
class GraphEdge:
    """Bind an input to one producer, whatever the names: GraphEdge("encode.latents", "score.goal").

    Both ends are "use.slot"; the source may also be "loop.collected". It must be written before the target:
    values flow backwards only as the carry of a loop.
    """

    source: str
    target: str

    def __post_init__(self) -> None:
        _check_ends("an edge", self.source, self.target)


@dataclass(frozen=True)
class StreamingGraphEdge:
    """Let a StreamLoop start before the loop that feeds it ends.

    The items are the values of `source` ("use.slot"), one per iteration of the innermost loop around it: any kind of
    loop. `policy` cuts them into chunks; `target` ("use.slot"), a node directly inside the StreamLoop, reads one
    StreamChunk per iteration. Both loops lie in the same loops and the source is written before the target. Several
    edges may end in one StreamLoop if they come from one loop with equal policies.

    The source waits while `max_ready_chunks` chunks are formed that the target has not completed. So nothing inside
    the StreamLoop may wait for the end of what feeds it.
    """

    source: str
    target: str
    policy: ChunkPolicy
    max_ready_chunks: int = 2

    def __post_init__(self) -> None:
        _check_ends("a streaming edge", self.source, self.target)
        where = f"the streaming edge {self.source!r} -> {self.target!r}"
        check_policy(self.policy, where)
        bound = self.max_ready_chunks
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
            raise GraphError(f"{where} has max_ready_chunks {bound!r}, expected an integer of at least 1")


def _check_ends(what: str, *ends: str) -> None:
    for end in ends:
        if not isinstance(end, str) or len(end.split(".")) != 2 or not all(end.split(".")):
            raise GraphError(f"{what} has the end {end!r}, expected 'node.slot'")
