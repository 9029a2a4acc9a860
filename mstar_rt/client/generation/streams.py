"""The blocking side of chat and speech."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import translated
from mstar_rt.client.generation import messages, results


class ChatStream:
    """Iterate over the text as it is written, once; leaving the loop early takes the request back. `done` says how it
    ended, after the last piece."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection  # a call does not outlive its channel, whatever becomes of the client
        self.done: results.GenerationDone | None = None

    def __iter__(self) -> Iterator[results.TextPiece]:
        try:
            with translated(self._connection.address):
                for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return  # the last word: the call's status follows, and nobody needs to wait for it
                    yield messages.text_piece(answer.text)
        finally:
            self._call.cancel()

    def text(self) -> str:
        """All of it, once it is written."""
        return "".join(piece.text for piece in self)

    def cancel(self) -> None:
        self._call.cancel()


class SpeechStream:
    """Iterate over the sound as it is made, once; leaving the loop early takes the request back. `done` says how it
    ended, after the last piece."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection
        self.done: results.GenerationDone | None = None

    def __iter__(self) -> Iterator[results.AudioPiece]:
        num_samples = 0
        try:
            with translated(self._connection.address):
                for answer in self._call:
                    if answer.WhichOneof("answer") == "done":
                        self.done = messages.generation_done(answer.done)
                        return
                    piece = messages.audio_piece(answer.audio, num_samples)
                    num_samples += len(piece.samples)
                    yield piece
        finally:
            self._call.cancel()

    def collect(self) -> results.Speech:
        """All of it, once it is made."""
        return messages.whole_speech(list(self), self.done)

    def cancel(self) -> None:
        self._call.cancel()
