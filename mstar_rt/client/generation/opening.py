"""`chat`, `speak`, `draw` and `edit_image` of Client and AsyncClient, which differ in what they return only."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from mstar_rt.client import arguments
from mstar_rt.client.channel import Connection
from mstar_rt.client.generation import messages
from mstar_rt.client.generation.messages import Conversation, Picture
from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import generation_pb2 as wire

Chat = TypeVar("Chat")
Speech = TypeVar("Speech")
Images = TypeVar("Images")


class Generates(Generic[Chat, Speech, Images]):
    """A client that asks for text, speech and images."""

    _chat_stream: type[Chat]
    _speech_stream: type[Speech]
    _image_stream: type[Images]
    _connection: Connection

    def chat(
        self,
        model: str,
        conversation: Conversation,
        *,
        image: Picture | None = None,
        task: str | None = "chat",
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Chat:
        """The model's answer to what the user says, or to a conversation: turns {"role": "system", "user" or
        "assistant", "content": "..."}, oldest first.

        `image`, uint8 [H, W, 3] RGB or a JPEG or PNG file, is what the conversation is about, as part of the user's
        first turn. `task` None: the only one that the model generates by. Options, as far as the model has them (see
        `describe`): max_tokens, temperature (0: greedy), top_k, top_p, repetition_penalty, stop (a string or several),
        seed (equal seeds, equal text), ignore_end, and those of its own.
        """
        request = messages.chat_request(model, conversation, task, image, budget_ms, criticality, options)
        return self._chat_stream(*self._call(request, timeout_s))  # type: ignore[call-arg]

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
        return self._speech_stream(*self._call(request, timeout_s))  # type: ignore[call-arg]

    def draw(
        self,
        model: str,
        prompt: str,
        *,
        system: str | None = None,
        task: str | None = "text_to_image",
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Images:
        """Images of what `prompt` says.

        Options, as far as the model has them (see `describe`): num_images (1 to 16), seed (image i is what seed + i
        makes alone), height and width in pixels, num_denoise_steps, timestep_shift, text_guidance, image_guidance,
        guidance_start, guidance_end, renormalization ("none", "global", "channel" or "text_channel"),
        renormalization_min; think=True (a plan is written first, and those of `chat` are options of it); preview_every
        and latents_every, after how many steps the progress has a preview and the latents; and those of its own.
        """
        request = messages.image_request(model, prompt, task, None, system, budget_ms, criticality, options)
        return self._image_stream(*self._call(request, timeout_s))  # type: ignore[call-arg]

    def edit_image(
        self,
        model: str,
        image: Picture,
        prompt: str,
        *,
        system: str | None = None,
        task: str | None = "edit_image",
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Images:
        """`image`, uint8 [H, W, 3] RGB or a JPEG or PNG file, changed as `prompt` says. Options: see `draw`.

        Raises:  InvalidArgument: the image is None.
        """
        if image is None:
            raise InvalidArgument(
                "image is None, but edit_image takes one: an array uint8 [H, W, 3], or a JPEG or PNG file as bytes"
            )
        request = messages.image_request(model, prompt, task, image, system, budget_ms, criticality, options)
        return self._image_stream(*self._call(request, timeout_s))  # type: ignore[call-arg]

    def _call(self, request: wire.GenerateRequest, timeout_s: float | None) -> tuple[Any, Connection]:
        """What a stream is made of."""
        timeout = arguments.timeout_s(timeout_s)
        return self._connection.generation.Generate(request, timeout=timeout), self._connection
