"""From tokens to text, piece by piece. No torch.

A token may be part of a character, and part of a stop string. What is given out never has to be taken back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from generators.llama.tasks import MAX_STOP_CHARACTERS, MAX_STOPS
from mstar_rt.errors import InvalidArgument

INCOMPLETE = "\ufffd"
"""What tokenizers write for bytes that are no character, or not yet."""


class Pieces(NamedTuple):
    """How far the tokens of an answer are text. Those from `first` on are decoded together, as spaces and characters
    depend on the token before; the text of those up to `read` was taken already. `held` was not given out yet, as it
    may become a stop string.
    """

    first: int
    read: int
    held: str = ""


class Piece(NamedTuple):
    text: str
    pieces: Pieces
    is_stopped: bool


def next_piece(
    pieces: Pieces, ids: Sequence[int], decode: Callable[[Sequence[int]], str], stops: Sequence[str], is_last: bool
) -> Piece:
    """What may be given out after one more token.

    Args:  ids: all tokens from `pieces.first` on. is_last: nothing comes after it.
    """
    before = decode(ids[: pieces.read - pieces.first])
    now = decode(ids)
    first, read = pieces.first, pieces.read
    new = ""
    if is_last or (len(now) > len(before) and not now.endswith(INCOMPLETE)):
        new, first, read = now[len(before) :], pieces.read, pieces.first + len(ids)
    text, held, is_stopped = _without_stops(pieces.held + new, stops, is_last)
    return Piece(text, Pieces(first, read, held), is_stopped)


def _without_stops(text: str, stops: Sequence[str], is_last: bool) -> tuple[str, str, bool]:
    """(what is given out, what is held back, whether a stop string came)."""
    found = [index for stop in stops if (index := text.find(stop)) >= 0]
    if found:
        return text[: min(found)], "", True
    if is_last or not stops:
        return text, "", False
    longest = max(map(len, stops)) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[:start], text[start:], False
    return text, "", False


@functools.lru_cache(maxsize=64)
def read_stops(option: str) -> tuple[str, ...]:
    """The strings of the option `stop`.

    Raises:  InvalidArgument: it is no JSON list of strings, or one is empty or too long.
    """
    try:
        stops = json.loads(option)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"option 'stop' is not JSON: {error}") from error
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidArgument("option 'stop' is no list of strings")
    if len(stops) > MAX_STOPS:
        raise InvalidArgument(f"option 'stop' has {len(stops)} strings, the limit is {MAX_STOPS}")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidArgument(
                f"option 'stop' has a string of {len(stop)} characters, expected 1 to {MAX_STOP_CHARACTERS}"
            )
    return tuple(stops)
