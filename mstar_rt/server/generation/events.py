"""What a generator's request emits, as plain events for whatever wire: pieces of text or sound, then one end. For
images see `image_events`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import Internal
from mstar_rt.model.generation import Reason
from mstar_rt.server.request_stream import Emission, RequestStream

PCM16_PEAK = 32767


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that are complete, and the tokens that were sampled since the piece before."""

    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Sound:
    """samples [S] float32, -1 to 1; `first_sample` is the index of the first one in the utterance."""

    samples: np.ndarray
    first_sample: int


@dataclass(frozen=True, slots=True)
class End:
    """Numbers that the model does not count are 0."""

    reason: Reason
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_samples: int = 0


class TextPieces:
    """Each decode step emits a text, which may be empty, and a token, in either order: puts them together."""

    NAMES = ("text", "token")

    def __init__(self) -> None:
        self.num_tokens = 0
        self._text = b""
        self._num_pending = 0
        self._awaited: str | None = None  # of text and token of one step, the one that has not come yet

    def add(self, emission: Emission) -> Text | None:
        """What can be shown by now."""
        if emission.name == "text":
            self._text += emission.data
        else:
            self.num_tokens += 1
            self._num_pending += 1
        if self._awaited is None:
            self._awaited = "token" if emission.name == "text" else "text"
        elif self._awaited == emission.name:
            self._awaited = None
            return self.rest()
        return None

    def rest(self) -> Text | None:
        """What has not been shown; tokens that wrote nothing count with the next that do."""
        if not self._text:
            return None
        piece = Text(_characters(self._text), self._num_pending)
        self._text, self._num_pending = b"", 0
        return piece


async def chat_events(stream: RequestStream) -> AsyncIterator[Text | End]:
    """One End, at last.

    Raises:  what the request fails with.
    """
    pieces, counts = TextPieces(), dict[str, int]()
    async for emission in stream:
        if emission.name not in TextPieces.NAMES:
            counts[emission.name] = count_of(emission)
        elif piece := pieces.add(emission):
            yield piece
    if piece := pieces.rest():
        yield piece
    yield End(reason_of(counts), counts.get("num_input_tokens", 0), pieces.num_tokens)


async def speech_events(stream: RequestStream) -> AsyncIterator[Sound | End]:
    """One End, at last. A chunk without samples is none.

    Raises:  what the request fails with.
    """
    num_samples = 0
    counts: dict[str, int] = {}
    async for emission in stream:
        if emission.name != "audio":
            counts[emission.name] = count_of(emission)
            continue
        samples = np.frombuffer(emission.data, "<f4")
        if len(samples):
            yield Sound(samples, num_samples)
            num_samples += len(samples)
    tokens = counts.get("num_input_tokens", 0), counts.get("num_output_tokens", 0)
    yield End(reason_of(counts), *tokens, num_samples)


def pcm16(samples: np.ndarray) -> bytes:
    """Signed 16-bit little-endian of [S] float32. What is louder than full scale is cut there, as any player would."""
    return np.rint(np.clip(samples, -1.0, 1.0) * PCM16_PEAK).astype("<i2").tobytes()


def count_of(emission: Emission) -> int:
    return int(np.frombuffer(emission.data, "<i8")[0])


def reason_of(counts: Mapping[str, int]) -> Reason:
    reason = counts.get("reason", 0)
    if reason not in Reason.__members__.values():
        raise Internal(f"the model ended with the reason {reason}, which does not exist")
    return Reason(reason)


def _characters(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Internal(f"the model wrote what is not UTF-8: {error.reason}") from error
