"""How many frames a world model sees at once, and when the oldest go.

Positions are not relative in every model, so frames that leave make what is cached of the others void: all of them get
new positions, and the cache is made anew from latents. A window therefore slides by several frames at once, its stride,
and stays until it is full again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mstar_rt.errors import InvalidArgument

if TYPE_CHECKING:
    import torch


class Window(NamedTuple):
    """At most `size` frames are seen; where one more would be, the oldest `stride` go. 1 <= stride <= size."""

    size: int
    stride: int

    def start(self, num_frames: int) -> int:
        """The first frame that is seen when there are `num_frames`; frames count from 0, as do positions from there."""
        return -((self.size - num_frames) // self.stride) * self.stride if num_frames > self.size else 0

    def slides_at(self, num_frames: int) -> bool:
        """Whether the last of `num_frames` frames pushed others out."""
        return self.start(num_frames) != self.start(num_frames - 1)

    def later_starts(self, num_frames: int, num_frames_at_end: int) -> Iterator[int]:
        """Where the window starts after each slide on the way from so many frames to so many."""
        start = self.start(num_frames) + self.stride
        while num_frames_at_end > self.size + start - self.stride:
            yield start
            start += self.stride

    def num_needed(self, num_frames: int, num_frames_at_end: int) -> int:
        """How many of the newest frames are still needed when there are `num_frames` and will be `num_frames_at_end`:
        those that are seen once the window slides, this time or next, else the newest alone."""
        before = self.start(num_frames - 1)
        if before == self.start(num_frames_at_end):
            return 1
        return max(1, num_frames - before - self.stride)


def window_of(params: Mapping[str, Any]) -> Window | None:
    """The window that a request asks for with `context_window` and `window_stride`; None if its task has none.

    Raises: InvalidArgument: the stride is longer than the window.
    """
    size = params.get("context_window")
    if size is None:
        return None
    stride = params.get("window_stride")
    if stride is None:
        return Window(size, max(1, size // 2))
    if stride > size:
        raise InvalidArgument(
            f"option 'window_stride' is {stride}, expected at most context_window = {size}: more frames cannot go"
        )
    return Window(size, stride)


def starting_frames(context: torch.Tensor) -> torch.Tensor:
    """What an imagination starts with: of the context [T, P, D] the last frame [1, P, D]. Those before it are in the
    cache, at all positions that they will have."""
    return context[-1:]
