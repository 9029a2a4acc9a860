"""From the ids that a language model writes to frames of codes. No torch.

Slot `i` of a frame has the ids `audio_base + codebook_size * i` and the `codebook_size - 1` after it: an id tells its
own place. Only the id that the next slot expects is taken: what is no audio is left out, and so is audio of another
slot, and the slot stays the same. So no code is ever read at a place that it was not written for, and a model that
skips a slot is in step again as soon as that slot comes by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Frame = tuple[int, ...]


@dataclass(frozen=True)
class AudioIds:
    audio_base: int
    codebook_size: int
    num_slots: int

    @property
    def end(self) -> int:
        """The id after the last one of audio."""
        return self.audio_base + self.codebook_size * self.num_slots

    def take(self, pending: Sequence[int], ids: Iterable[int]) -> tuple[list[Frame], list[int]]:
        """The frames that `ids` complete, as codes by slot, and the codes of the one that is begun; `pending` are those
        that were left before."""
        frames: list[Frame] = []
        codes = list(pending)
        for one in ids:
            slot, code = divmod(one - self.audio_base, self.codebook_size)
            if slot != len(codes):
                continue
            codes.append(code)
            if len(codes) == self.num_slots:
                frames.append(tuple(codes))
                codes = []
        return frames, codes
