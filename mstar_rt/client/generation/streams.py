"""The blocking side of chat, speech and images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import translated
from mstar_rt.client.generation import messages, results
from mstar_rt.errors import FailedPrecondition

Piece = TypeVar("Piece")

READ_BEFORE = "a stream is read once, and this one was read before: keep what it gives in a list, or call again"


class PieceStream(ABC, Generic[Piece]):
    """Iterate over what is made as it is made, once; leaving the loop early takes the request back. `done` says how it
    ended, after the last piece.

    Raises:  FailedPrecondition: it was read before, to its end or not.
    """

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection  # a call does not outlive its channel, whatever becomes of the client
        self._was_read = False
        self.done: results.GenerationDone | None = None

    def __iter__(self) -> Iterator[Piece]:
        if self._was_read:
            raise FailedPrecondition(READ_BEFORE)
        self._was_read = True
        read = self._reader()
        try:
            with translated(self._connection.address):
                for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return  # the last word: the call's status follows, and nobody needs to wait for it
                    yield read(answer)
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        self._call.cancel()

    @abstractmethod
    def _reader(self) -> messages.Reader[Piece]:
        """What makes a piece of each answer, in their order."""


class ChatStream(PieceStream[results.TextPiece]):
    """See PieceStream: the text as it is written."""

    def _reader(self) -> messages.Reader[results.TextPiece]:
        return messages.text_piece

    def text(self) -> str:
        """All of it, once it is written."""
        return "".join(piece.text for piece in self)


class SpeechStream(PieceStream[results.AudioPiece]):
    """See PieceStream: the sound as it is made."""

    def _reader(self) -> messages.Reader[results.AudioPiece]:
        return messages.SpeechReader()

    def collect(self) -> results.Speech:
        """All of it, once it is made."""
        return messages.whole_speech(list(self), self.done)


class ImageStream(PieceStream[results.ImagePiece]):
    """See PieceStream: of each image its progress and then itself; of one that is planned first the plan's text."""

    def _reader(self) -> messages.Reader[results.ImagePiece]:
        return messages.image_piece

    def images(self) -> list[results.ImageResult]:
        """All of them in order, once they are made."""
        return messages.all_images(list(self), self.done)
