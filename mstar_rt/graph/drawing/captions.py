"""What all drawings say about a walk's parts, in the same words."""

from __future__ import annotations

from mstar_rt.graph.binding import BoundUse, BoundWalk
from mstar_rt.graph.chunk_policy import ChunkPolicy
from mstar_rt.graph.edge import StreamingGraphEdge
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Parallel, Section, Sequential
from mstar_rt.graph.source import owner


def parts_of(section: Sequential | Parallel) -> list[Section]:
    """The parts, with those of a like section among them in its place: grouping alone means nothing."""
    parts: list[Section] = []
    for part in section.sections:
        if isinstance(part, Sequential | Parallel) and type(part) is type(section):
            parts += parts_of(part)
        else:
            parts.append(part)
    return parts


def use_title(use: NodeUse) -> str:
    """The name, with the node's own name where the use has an alias."""
    return use.name if use.name == use.node.name else f"{use.name} ({use.node.name})"


def loop_title(bound: BoundWalk, loop: Loop) -> str:
    return f"{loop_name(loop)}: {loop_bound(bound, loop)}"


def loop_name(loop: Loop) -> str:
    if loop.is_stream:
        return f"stream loop {loop.name}"
    return f"loop {loop.name}" if loop.leave_node is None else f"dynamic loop {loop.name}"


def loop_bound(bound: BoundWalk, loop: Loop) -> str:
    """How often, e.g. "up to num_iterations <= 100 times, left by refit" or "once per chunk of talk, Fixed(k=4)"."""
    for stream in bound.streams:
        if stream.consumer_loop == loop.name:
            return f"once per chunk of {stream.producer_loop}, {policy_name(stream.edge.policy)}"
    times = str(loop.times) if isinstance(loop.times, int) else f"{loop.times} <= {loop.limit}"
    if loop.leave_node is None:
        return f"{times} times"
    return f"up to {times} times, left by {loop.leave_node}"


def policy_name(policy: ChunkPolicy) -> str:
    return repr(policy).replace("ChunkPolicy(", "(", 1)


def renaming(inner: str, outer: str) -> str:
    return inner if inner == outer else f"{inner}={outer}"


def inputs_of(bound: BoundWalk, placed: BoundUse) -> list[str]:
    """Each slot with what it reads: "slot", "slot=tensor", "slot<-node.slot" for an explicit edge or
    "slot<~node.slot" for a streaming one."""
    explicit = {edge.target: edge for edge in bound.walk.edges}
    use = placed.use
    lines = []
    for slot, tensor in zip(use.node.inputs, use.tensors_in, strict=True):
        edge = explicit.get(f"{use.name}.{slot}")
        if edge is None:
            lines.append(renaming(slot, tensor))
        else:
            lines.append(f"{slot}{'<~' if isinstance(edge, StreamingGraphEdge) else '<-'}{edge.source}")
    return lines


def outputs_of(use: NodeUse) -> list[str]:
    return [renaming(slot, t) for slot, t in zip(use.node.outputs, use.tensors_out, strict=True)]


def emitted_by(bound: BoundWalk, producer: str) -> list[str]:
    """The tensors of a use or loop that go to the client."""
    return [name for name, source in bound.emits if owner(source) == producer]


def persisted_by(bound: BoundWalk, producer: str) -> list[str]:
    return [name for name, source in bound.persists if owner(source) == producer]
