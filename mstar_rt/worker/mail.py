"""What a step of a walk sends, in the smallest parts that can be sent each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar_rt.cache.moving import Delta
from mstar_rt.program import Emission, Send

Moved = tuple[str, list[Delta]]
"""A cache, and what changed in it."""


@dataclass(slots=True)
class Piece:
    """An emission for the server, or what another rank is told, with the sequences that have to be there before.

    These count as known to that rank once they are here: a piece is to be sent, or its walk to end.
    """

    emission: Emission | None = None
    send: Send | None = None
    moved: Sequence[Moved] = ()
