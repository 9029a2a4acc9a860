"""`chat` and `speak` of Client and AsyncClient, which differ in what they return only."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from mstar_rt.client import arguments
from mstar_rt.client.channel import Connection
from mstar_rt.client.generation import messages
from mstar_rt.client.generation.messages import Conversation

Chat = TypeVar("Chat")
Speech = TypeVar("Speech")


class Generates(Generic[Chat, Speech]):
    """A client that asks for text and speech."""

    _chat_stream: type[Chat]
    _speech_stream: type[Speech]
    _connection: Connection

    def chat(
        self,
        model: str,
        conversation: Conversation,
        *,
        task: str | None = "chat",
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Chat:
        """The model's answer to what the user says, or to a conversation: turns {"role": "system", "user" or
        "assistant", "content": "..."}, oldest first.

        `task` None: the only one that the model generates by. Options, as far as the model has them (see `describe`):
        max_tokens, temperature (0: greedy), top_k, top_p, repetition_penalty, stop (one or several strings), seed
        (equal seeds, equal text), ignore_end, and those of its own.
        """
        request = messages.chat_request(model, conversation, task, budget_ms, criticality, options)
        call = self._connection.generation.Generate(request, timeout=arguments.timeout_s(timeout_s))
        return self._chat_stream(call, self._connection)  # type: ignore[call-arg]

    def speak(
        self,
        model: str,
        text: str,
        *,
        task: str | None = "speech",
        encoding: str = "pcm16",
        playback_buffer_s: float | None = None,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Speech:
        """`text`, spoken.

        `encoding`: how samples travel, "pcm16" or "float32", which is twice as many bytes and exact; they arrive as
        float32 either way. `playback_buffer_s`: seconds of sound that your player gathers before it starts; the server
        serves first whose player runs dry first. Options, as far as the model has them (see `describe`): voice, speed
        (1: normal), seed, and those of `chat`.
        """
        request = messages.speech_request(
            model, text, task, encoding, playback_buffer_s, budget_ms, criticality, options
        )
        call = self._connection.generation.Generate(request, timeout=arguments.timeout_s(timeout_s))
        return self._speech_stream(call, self._connection)  # type: ignore[call-arg]
