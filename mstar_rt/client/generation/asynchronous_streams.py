"""The asyncio side of chat and speech."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import translated
from mstar_rt.client.generation import messages, results


class AsyncChatStream:
    """See `streams.ChatStream`. asyncio closes a loop that is left early at its next turn; `cancel` does it now."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection
        self.done: results.GenerationDone | None = None

    async def __aiter__(self) -> AsyncIterator[results.TextPiece]:
        try:
            with translated(self._connection.address):
                async for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return
                    yield messages.text_piece(answer.text)
        finally:
            self._call.cancel()

    async def text(self) -> str:
        """All of it, once it is written."""
        return "".join([piece.text async for piece in self])

    def cancel(self) -> None:
        self._call.cancel()


class AsyncSpeechStream:
    """See `streams.SpeechStream` and AsyncChatStream."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection
        self.done: results.GenerationDone | None = None

    async def __aiter__(self) -> AsyncIterator[results.AudioPiece]:
        num_samples = 0
        try:
            with translated(self._connection.address):
                async for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return
                    piece = messages.audio_piece(answer.audio, num_samples)
                    num_samples += len(piece.samples)
                    yield piece
        finally:
            self._call.cancel()

    async def collect(self) -> results.Speech:
        """All of it, once it is made."""
        return messages.whole_speech([piece async for piece in self], self.done)

    def cancel(self) -> None:
        self._call.cancel()
