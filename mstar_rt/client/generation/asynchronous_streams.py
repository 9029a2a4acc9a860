"""The asyncio side of chat, speech and images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import translated
from mstar_rt.client.generation import messages, results
from mstar_rt.client.generation.streams import READ_BEFORE
from mstar_rt.errors import FailedPrecondition

Piece = TypeVar("Piece")


class AsyncPieceStream(ABC, Generic[Piece]):
    """See `streams.PieceStream`. asyncio closes a loop that is left early at its next turn; `cancel` does it now."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection
        self._was_read = False
        self.done: results.GenerationDone | None = None

    async def __aiter__(self) -> AsyncIterator[Piece]:
        if self._was_read:
            raise FailedPrecondition(READ_BEFORE)
        self._was_read = True
        read = self._reader()
        try:
            with translated(self._connection.address):
                async for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return
                    yield read(answer)
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        self._call.cancel()

    @abstractmethod
    def _reader(self) -> messages.Reader[Piece]:
        """What makes a piece of each answer, in their order."""


class AsyncChatStream(AsyncPieceStream[results.TextPiece]):
    """See `streams.ChatStream`."""

    def _reader(self) -> messages.Reader[results.TextPiece]:
        return messages.text_piece

    async def text(self) -> str:
        """All of it, once it is written."""
        return "".join([piece.text async for piece in self])


class AsyncSpeechStream(AsyncPieceStream[results.AudioPiece]):
    """See `streams.SpeechStream`."""

    def _reader(self) -> messages.Reader[results.AudioPiece]:
        return messages.SpeechReader()

    async def collect(self) -> results.Speech:
        """All of it, once it is made."""
        return messages.whole_speech([piece async for piece in self], self.done)


class AsyncImageStream(AsyncPieceStream[results.ImagePiece]):
    """See `streams.ImageStream`."""

    def _reader(self) -> messages.Reader[results.ImagePiece]:
        return messages.image_piece

    async def images(self) -> list[results.ImageResult]:
        """All of them in order, once they are made."""
        return messages.all_images([piece async for piece in self], self.done)
