"""What requests that make images emit, as plain events: of a plan its text, progress, the image, then one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import Internal
from mstar_rt.model.generation import Reason
from mstar_rt.server.generation.events import End, Text, TextPieces, count_of, reason_of
from mstar_rt.server.request_stream import Emission, RequestStream

Group = dict[str, Emission]
"""What came of one denoise step."""


@dataclass(frozen=True, slots=True)
class Every:
    """After how many steps each is due, 0: never."""

    preview: int = 0
    latents: int = 0

    def due(self, step: int) -> set[str]:
        due = (("preview", self.preview), ("latents", self.latents))
        return {name for name, every in due if every and step % every == 0}


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` denoise steps are done. preview [H, W, 3] uint8 RGB, latents [T, D] float32, where they are due."""

    step: int
    preview: np.ndarray | None = None
    latents: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """pixels [H, W, 3] uint8 RGB."""

    pixels: np.ndarray


ImageEvent = Text | Progress | Picture | End


async def image_events(stream: RequestStream, every: Every) -> AsyncGenerator[ImageEvent, None]:
    """Of one request; one End, at last, whose reason is that of the plan where one is written.

    Raises:  what the request fails with.  Internal: it ended without an image.
    """
    pieces, steps, counts = TextPieces(), _Steps(every), dict[str, int]()
    picture: Picture | None = None
    async for emission in stream:
        if emission.name in TextPieces.NAMES:
            if piece := pieces.add(emission):
                yield piece
        elif emission.name in _Steps.NAMES:
            if progress := steps.add(emission):
                yield progress
        elif emission.name == "image":
            picture = Picture(_array(emission, "u1"))
        else:
            counts[emission.name] = count_of(emission)
    if picture is None:
        raise Internal("the model finished without an image")
    if piece := pieces.rest():
        yield piece
    for progress in steps.rest():
        yield progress
    yield picture
    reason = reason_of(counts) if "reason" in counts else Reason.END
    yield End(reason, counts.get("num_input_tokens", 0), pieces.num_tokens)


async def events_of_all(streams: Sequence[RequestStream], every: Every) -> AsyncGenerator[tuple[int, ImageEvent], None]:
    """As they come, each with the index of its stream. Not more than one event of each waits here.

    Raises:  what the first that fails fails with.
    """
    sources = [image_events(stream, every) for stream in streams]
    waiting = {asyncio.ensure_future(_next(source)): index for index, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                event = task.result()
                index = waiting.pop(task)
                if event is not None:
                    yield index, event
                    waiting[asyncio.ensure_future(_next(sources[index]))] = index
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for source in sources:
            await source.aclose()


def end_of_all(ends: Sequence[End]) -> End:
    """All images are made from the same, so what each of them read counts once."""
    reason = next((end.reason for end in ends if end.reason != Reason.END), Reason.END)
    return End(reason, ends[0].num_input_tokens, sum(end.num_output_tokens for end in ends))


async def _next(source: AsyncIterator[ImageEvent]) -> ImageEvent | None:
    return await anext(source, None)


class _Steps:
    """Puts together what comes of one step, in any order; a preview that is decoded elsewhere comes late."""

    NAMES = ("step", "preview", "latents")

    def __init__(self, every: Every) -> None:
        self._every = every
        self._open: dict[tuple[int, ...], Group] = {}

    def add(self, emission: Emission) -> Progress | None:
        """What is complete by now."""
        group = self._open.setdefault(emission.iteration, {})
        group[emission.name] = emission
        step = group.get("step")
        if step is None or not self._every.due(count_of(step)) <= group.keys():
            return None
        return _progress(self._open.pop(emission.iteration))

    def rest(self) -> list[Progress]:
        """Steps of which something did not come. What comes without a step is empty: nothing of it was due."""
        return [_progress(group) for _, group in sorted(self._open.items()) if "step" in group]


def _progress(group: Group) -> Progress:
    preview, latents = group.get("preview"), group.get("latents")
    return Progress(
        count_of(group["step"]),
        None if preview is None or not preview.data else _array(preview, "u1"),
        None if latents is None or not latents.data else _array(latents, "<f4"),
    )


def _array(emission: Emission, dtype: str) -> np.ndarray:
    return np.frombuffer(emission.data, dtype).reshape(emission.shape)
