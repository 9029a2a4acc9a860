"""Where a value comes from: what names resolve to once a walk is bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class WalkInput:
    """Given when the walk starts."""

    name: str


@dataclass(frozen=True)
class NodeOutput:
    """An output slot of a node use, one value per iteration of the loops around it."""

    use: str
    slot: str


@dataclass(frozen=True)
class Carried:
    """What `loop` carries under `name`: the initial value in iteration 0, then the iteration before's."""

    loop: str
    name: str


@dataclass(frozen=True)
class LastValue:
    """`source`, which is in the body of `loop`, seen from behind it: the value of the last iteration."""

    loop: str
    source: Source


@dataclass(frozen=True)
class Collected:
    """The list that `loop` collects under `name`."""

    loop: str
    name: str


@dataclass(frozen=True)
class Streamed:
    """The chunks that a streaming edge hands to `slot` of the node `use`, one per iteration of the StreamLoop
    `loop`."""

    loop: str
    use: str
    slot: str


Source = Union[WalkInput, NodeOutput, Carried, LastValue, Collected, Streamed]


def origin(source: Source) -> WalkInput | NodeOutput | Carried | Collected | Streamed:
    """The producer itself, whatever loops its value leaves on the way."""
    while isinstance(source, LastValue):
        source = source.source
    return source


def owner(source: Source) -> str:
    """The node use or loop that produces a source, or the name of a walk's input."""
    producer = origin(source)
    assert not isinstance(producer, Streamed), "chunks are read, never emitted, persisted, carried or collected"
    if isinstance(producer, NodeOutput):
        return producer.use
    if isinstance(producer, WalkInput):
        return producer.name
    return producer.loop


def label(source: Source) -> str:
    """How messages call a source: "node.slot", "loop.name" or the input's name."""
    producer = origin(source)
    if isinstance(producer, WalkInput):
        return producer.name
    if isinstance(producer, NodeOutput | Streamed):
        return f"{producer.use}.{producer.slot}"
    return f"{producer.loop}.{producer.name}"
