"""What one step of a walk sends, written but perhaps not sent yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_rt.message import CacheDelta, Token
from mstar_rt.program import Emission
from mstar_rt.worker.parcels import Letter, Parcels


@dataclass(slots=True)
class Draft:
    """The message to one rank, before its tensors are put."""

    letter: Letter
    moved: set[str] = field(default_factory=set)
    caches: list[CacheDelta] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)


@dataclass(slots=True)
class Mail:
    """All messages of a step, by rank, and what it emits, each with the index of its tensor in `parcels`.

    Writing it marks what moves as known to its readers: it is to be sent, or the walk to end.
    """

    parcels: Parcels
    to_server: list[tuple[Emission, int]]
    drafts: dict[int, Draft]
