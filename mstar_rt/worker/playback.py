"""When somebody who listens to a stream runs dry, and what follows for its units. Pure: no clock, no torch."""

from __future__ import annotations

from mstar_rt.message import Playback

FIRST_SOUND_NS = 200_000_000
"""Until its first sound a stream counts as one that runs dry so long after its begin: somebody waits to hear something,
but others must not fall silent for it."""

LATE_NS = 100_000_000
"""A stream that cannot be in time any more is due so long after it could run: it is silent in any case, and goes behind
those that still can, but not behind those with more in hand."""


class Player:
    """What a listener has of one stream: samples are played from the first one on, `buffer_s` later, without a pause as
    long as there are any. One that ran dry goes on as soon as there is more.

    `ran_ns` is always the step time that the walk has had on this rank.
    """

    __slots__ = ("_buffer_ns", "_dry_ns", "_gap_ns", "_has_begun", "_ns_per_sample", "_ran_ns", "output")

    def __init__(self, playback: Playback, begun_ns: int) -> None:
        self.output = playback.output
        self._buffer_ns = int(playback.buffer_s * 1e9)
        self._ns_per_sample = 1e9 / playback.sample_rate_hz
        self._dry_ns = begun_ns + FIRST_SOUND_NS
        self._has_begun = False
        self._gap_ns = self._ran_ns = 0

    def sound(self, num_samples: int, now_ns: int, ran_ns: int) -> int:
        """More was made; returns when it has been played."""
        first_ns = max(self._dry_ns, now_ns) if self._has_begun else now_ns + self._buffer_ns
        dry_ns = first_ns + int(num_samples * self._ns_per_sample)
        self.note(dry_ns, ran_ns)
        return dry_ns

    def note(self, dry_ns: int, ran_ns: int) -> None:
        """What was made, here or on another rank, has been played then."""
        self._has_begun, self._dry_ns = True, dry_ns
        self._gap_ns, self._ran_ns = ran_ns - self._ran_ns, ran_ns

    def due_ns(self, ready_ns: int, ran_ns: int) -> int:
        """Until when a unit that could run at `ready_ns` should: so that the next sound, if it takes as long as the
        last one did, comes before the player runs dry."""
        needed_ns = max(0, self._gap_ns - (ran_ns - self._ran_ns))
        due_ns = self._dry_ns - needed_ns
        return due_ns if due_ns >= ready_ns else ready_ns + LATE_NS
