"""A text to pieces of phonemes that the network speaks at once, and where a reader of the text stands. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np

from mstar_rt.errors import InvalidArgument

MAX_SENTENCE = 600
"""Characters that are made phonemes at once: more than 400 phonemes, which are cut again, in any common text."""
MAX_WORD, MAX_DIGITS = 60, 30
"""A space is put into longer words, and numbers with more digits: the package takes the square of a word's length,
many seconds for thousands of characters without a space, and fails at numbers of some 40 digits."""

_FULL_WIDTH_END = re.compile(r"(?<=[。！？])\s*")
"""Where sentences end in Chinese and Japanese. They have no sound here, and are left out as such, said so."""
_CLAUSE_END = re.compile(r"(?<=[,;:—]) ")
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD}}}(?=\S)")
_LONG_NUMBER = re.compile(rf"(?:\d[.,]?){{{MAX_DIGITS}}}(?=\d)")
REMEMBERED_TEXTS, REMEMBERED_SENTENCES = 64, 512


@dataclass(frozen=True)
class Reading:
    """Where in its text a request is: before piece `piece` of sentence `sentence`. So far `num_phonemes` were spoken;
    `reason` is one of model.Reason once it has ended. `noise` is the state of the random generator."""

    sentence: int
    piece: int
    num_phonemes: int
    reason: int
    noise: tuple[int, ...]

    def numbers(self) -> list[int]:
        return [self.sentence, self.piece, self.num_phonemes, self.reason, *self.noise]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Reading:
        sentence, piece, num_phonemes, reason, *noise = numbers
        return cls(sentence, piece, num_phonemes, reason, tuple(noise))


class Reader:
    """Finds pieces, in one accent.

    Nothing of a request is kept: sentences and phonemes of what was read lately are remembered, as each sentence is
    looked up several times.

    Args:
        sentences: splits a text.  phonemes: of a sentence, "" if it has none.
        known: the phonemes that the network knows; it leaves out all others.
    """

    def __init__(
        self,
        sentences: Callable[[str], list[str]],
        phonemes: Callable[[str], str],
        known: Collection[str],
        max_phonemes: int,
    ) -> None:
        self._phonemes, self._known, self._max_phonemes = phonemes, known, max_phonemes
        self._sentences = lru_cache(REMEMBERED_TEXTS)(
            lambda text: bounded(each for part in _FULL_WIDTH_END.split(text) for each in sentences(part))
        )
        self._pieces = lru_cache(REMEMBERED_SENTENCES)(self._new_pieces)

    def piece(self, text: str, reading: Reading) -> str:
        """The one at `reading`, which `find` has found."""
        return self._pieces(self._sentences(text)[reading.sentence])[reading.piece]

    def find(self, text: str, reading: Reading) -> tuple[Reading | None, bool]:
        """Where the next piece is, here or behind; None: nothing follows. And whether a sentence without one was
        skipped."""
        was_skipped = False
        for index, sentence in islice(enumerate(self._sentences(text)), reading.sentence, None):
            first = reading.piece if index == reading.sentence else 0
            pieces = self._pieces(sentence)
            if first < len(pieces):
                return replace(reading, sentence=index, piece=first), was_skipped
            was_skipped = was_skipped or not pieces
        return None, was_skipped

    def _new_pieces(self, sentence: str) -> tuple[str, ...]:
        try:
            pieces = cut(self._phonemes(sentence), self._max_phonemes)
        except Exception as error:  # of the package, which has nothing to say to whoever sent the text
            raise InvalidArgument(f"{sentence[:60]!r} cannot be read out: put it in other words") from error
        return tuple(piece for piece in pieces if any(each in self._known for each in piece))


def bounded(sentences: Iterable[str]) -> list[str]:
    """The same, long ones in several: none, and no word or number in it, is longer than it may be."""
    spaced = (_LONG_NUMBER.sub(r"\g<0> ", _LONG_WORD.sub(r"\g<0> ", sentence)) for sentence in sentences)
    return [part for sentence in spaced for part in cut(sentence, MAX_SENTENCE)]


def cut(phonemes: str, most: int) -> list[str]:
    """Pieces of at most so many: cut behind the last clause that fits, or else the last word, or else anywhere."""
    pieces = []
    while len(phonemes) > most:
        clauses = [match.start() for match in _CLAUSE_END.finditer(phonemes, 0, most + 1)]
        end = clauses[-1] if clauses else phonemes.rfind(" ", 1, most + 1)
        if end < 1:
            end = most
        pieces.append(phonemes[:end].strip())
        phonemes = phonemes[end:].lstrip()
    return [piece for piece in (*pieces, phonemes) if piece]


_WORD = (1 << 64) - 1


def noise_state(noise: np.random.Generator) -> tuple[int, ...]:
    """Six numbers that fit into int64."""
    state = noise.bit_generator.state
    words = [(state["state"][name] >> shift) & _WORD for name in ("state", "inc") for shift in (64, 0)]
    return (*(word - (word >> 63 << 64) for word in words), state["has_uint32"], state["uinteger"])


def noise_from(state: Sequence[int]) -> np.random.Generator:
    high, low, high_inc, low_inc = (number & _WORD for number in state[:4])
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": high_inc << 64 | low_inc},
        "has_uint32": state[4],
        "uinteger": state[5],
    }
    return np.random.Generator(bits)
