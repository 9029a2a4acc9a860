"""What the code of a node sees: one call per request in the batch, and the resources it is built with.

Torch appears in annotations only: this room is read by processes that do not have it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


def nothing_measured(node: str) -> int | None:
    """How long a step of a node takes, where nobody has measured."""
    return None


@dataclass(slots=True)
class NodeCall:
    """One request's turn at one node.

    `node` is the name of the node's use in the walk. `inputs` maps the node's input slots to tensors; a slot that a
    streaming edge ends in holds a graph.StreamChunk of tensors, one that reads a collected value a list of them, and an
    optional input of the task that nobody gave is None. `iteration` has one entry per enclosing loop, outermost first.
    `params` are the request's options, checked and complete. `sequences` (KV nodes only) is the request's
    cache.SequenceStore: the page tables that the request owns in this node's cache, by label, for as long as the
    cache's KVSpec says. `seed` is the request's. `deadline_ns` is absolute on the clock that `now_ns` reads.
    `predicted_ns` says how long steps of a node took lately, in the batches that they were in, by the node's name;
    None: not measured.

    `part` is what this turn has to do, a range of the `num_items` items that the node's code says it has; None: all of
    them, at once. The parts of a call come in order and each item is in one of them. `progress` is what the node gave
    with the part before; None in the first.
    """

    request_id: str
    session_id: str
    walk: str
    iteration: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]
    params: Mapping[str, Any]
    now_ns: Callable[[], int]
    deadline_ns: int | None = None
    sequences: Any = None
    node: str = ""
    seed: int = 0
    predicted_ns: Callable[[str], int | None] = nothing_measured
    num_items: int = 1
    part: range | None = None
    progress: Any = None

    @property
    def is_last_part(self) -> bool:
        """Whether the outputs are due. The whole is its own last part."""
        return self.part is None or self.part.stop == self.num_items

    def generator(self) -> torch.Generator:
        """Randomness of this request at this node in this iteration, and of nothing else: the same whoever shares the
        batch and whichever rank runs it. On the CPU; draw there and move what was drawn."""
        import torch

        key = repr((self.seed, self.walk, self.node, self.iteration)).encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))


def by_part(calls: Sequence[NodeCall], num_items: int) -> list[tuple[range, list[NodeCall]]]:
    """The calls of a step, of `num_items` items each, by what they have to do: in their order, those together that
    follow one another and stand at the same items. For nodes whose items are layers, which calls go through together.
    """
    whole = range(num_items)
    groups = groupby(calls, lambda call: whole if call.part is None else call.part)
    return [(items, list(group)) for items, group in groups]


@dataclass(slots=True)
class NodeResult:
    """Outputs by slot name. `leave` ends the DynamicLoop that names this node, once this iteration is complete.

    `flags` reach the client with the answer, e.g. ("deadline",) from a loop that stopped because time was up.
    `progress` is for the next part of the same call, which finds it in `NodeCall.progress`; a part that is not the last
    has it alone, besides flags: NodeResult({}, progress=...).
    """

    outputs: dict[str, torch.Tensor]
    leave: bool = False
    flags: tuple[str, ...] = ()
    progress: Any = None


@dataclass(frozen=True)
class NodeResources:
    """Where and how a worker builds its nodes. `nodes` are the names that are placed on this rank: the factory has to
    build these, and need not load the weights of others. Empty: all. `compile`: what can be is to be compiled by torch
    before this returns, and said so in the node's `is_compiled`."""

    device: str = "cpu"
    dtype: str = "float32"
    max_batch: int = 16
    nodes: frozenset[str] = frozenset()
    compile: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class StatelessNode(Protocol):
    """A node without memory between calls."""

    def batch_key(self, call: NodeCall) -> Hashable:
        """Calls with equal keys may share a step; e.g. the shapes that must agree."""
        ...

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        """One step for the whole batch; results in the order of `calls`, equal to running each call alone."""
        ...


class OneByOne(ABC):
    """A StatelessNode whose calls are computed one after the other: it has nothing to gain from a batch, or its results
    are to be the same whoever shares the step."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self.run_one(call) for call in calls]

    @abstractmethod
    def run_one(self, call: NodeCall) -> NodeResult: ...


@runtime_checkable
class InParts(Protocol):
    """What the code of either kind of node has besides, if a long call can be run in several steps."""

    def num_items(self, call: NodeCall) -> int:
        """How many things, 1 or more, the call can do one after the other: images, frames, candidates, rows, tiles.

        Asked once, when the call becomes ready. Items should cost about the same. Run in parts or at once, the outputs
        are equal.
        """
        ...


@runtime_checkable
class KVNode(Protocol):
    """A node that attends over paged memory."""

    def batch_key(self, call: NodeCall) -> Hashable: ...

    def attention_steps(self, call: NodeCall) -> Sequence[Any]:
        """The nn.attention.AttentionStep of every sequence that this call touches; of the call's part, if it has one.

        May create, fork or truncate tables in `call.sequences`; must be idempotent, as the engine asks again when pages
        were exhausted.
        """
        ...

    def run(self, calls: Sequence[NodeCall], attention: Any) -> Sequence[NodeResult]:
        """One step; `attention` is the nn.attention.AttentionPlan over the steps of all calls, in order."""
        ...
