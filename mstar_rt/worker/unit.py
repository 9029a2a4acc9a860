"""What the scheduler orders: one node of one request that can run now, and what it decides."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

CRITICALITIES = ("control", "planning", "generation")
CLASS_OF = {name: index for index, name in enumerate(CRITICALITIES)}

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Unit(Generic[T]):
    """One (node, request) that can run now.

    `engine_id` is (model, node), `order` the node's topological position in its walk, `arrival` a number that grows
    with every unit, `work` whatever the worker needs to run it. `num_items` are left to do; more than one can be done
    in several steps. `age` grows with every request. Requests of one `walk_key` pass the same nodes: they can meet and
    share steps.

    `remaining_ns` is what the walk is expected to need from here to its end, this node included; None: not known. After
    `drop_after_ns` it cannot make its deadline any more and is not to be run; None: it is to be run even if late.
    `is_soft`: the deadline is when somebody who listens should have more. It decides who goes first, no more than that.
    """

    request_id: str
    engine_id: tuple[str, str]
    batch_key: Hashable
    criticality: str
    order: int
    arrival: int
    ready_ns: int
    work: T
    deadline_ns: int | None = None
    num_items: int = 1
    client: str = ""
    age: int = 0
    walk_key: Hashable = None
    remaining_ns: int | None = None
    drop_after_ns: int | None = None
    is_soft: bool = False
    number: int = 0  # this and what follows are the scheduler's own marks; 0: not in the ready set
    added_at: int = 0
    group: Any = None


@dataclass(slots=True)
class Decision(Generic[T]):
    """`batch` runs now, as one step; empty if nothing is ready. `dropped` could not make their deadlines any more. All
    of them are out of the ready set."""

    batch: list[Unit[T]]
    dropped: list[Unit[T]]


class SchedulingPolicy(Protocol[T]):
    """The ready set of one worker, and the order in which it runs."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Unit[T]]:
        """All that is ready, in no order."""
        ...

    def add(self, units: Iterable[Unit[T]]) -> None: ...

    def add_one(self, unit: Unit[T]) -> None: ...

    def remove_request(self, request_id: str) -> None:
        """Costs a look at every ready unit: for requests that end before their time."""
        ...

    def next_batch(self, now_ns: int) -> Decision[T]: ...

    def ran(self, batch: Sequence[Unit[T]], duration_ns: int) -> None:
        """What the step took in which these units ran; said before what follows them is added."""
        ...
