"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.model.conversation import ROLES
from mstar_rt.model.generation import Reason
from mstar_rt.server.gateway.body import MAX_BODY_BYTES
from mstar_rt.server.gateway.call import Call
from mstar_rt.server.gateway.data_url import image_of_url
from mstar_rt.server.gateway.errors import FieldError, HttpError
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.gateway.options import (
    BUDGET,
    SAMPLING,
    STOP,
    Given,
    Names,
    as_fields,
    checked,
    named,
    take_sampling,
    take_stop,
)
from mstar_rt.server.generation.events import End, Text, chat_events
from mstar_rt.server.generation.requests import chat_input, chat_task, only_image
from mstar_rt.server.request_stream import RequestStream

OTHER_ROLES = {"developer": "system"}
"""What newer clients call it."""
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (), "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0),
    "logit_bias": ({},), "tools": ([],), "functions": ([],), "tool_choice": ("none",), "function_call": ("none",),
    "parallel_tool_calls": (), "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (),
    "prediction": (), "reasoning_effort": ("none",), "verbosity": (), "service_tier": ("auto", "default"),
    "store": (False,), "metadata": ({},), "user": (), "safety_identifier": (), "prompt_cache_key": (),
    "prompt_cache_options": (), "prompt_cache_retention": (), "web_search_options": (), "moderation": (),
}  # fmt: skip
"""Fields of OpenAI's API that nothing is made of here, with the values that are as if they were not given."""
WITHOUT_EFFECT_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "name": (), "refusal": (), "audio": (), "tool_calls": ([],), "function_call": (), "annotations": ([],),
}  # fmt: skip
PARTS = ("text", "image_url")
KNOWN = ("model", "messages", "stream", "stream_options", "max_completion_tokens", STOP, BUDGET, *SAMPLING)
NAMES: Names = {
    **named({name: name for name in (*SAMPLING, STOP, BUDGET)}),
    "conversation": ("messages", "conversation"),
}  # fmt: skip
FINISH_REASONS = {Reason.END: "stop", Reason.STOP: "stop", Reason.MAX_TOKENS: "length", Reason.DEADLINE: "length"}


@dataclass(frozen=True)
class Asked:
    """`messages` are (role, content); `image` is the URL of what they are about, and the field that it came in.
    `streams`: the answer comes piece by piece, with the usage if `with_usage`."""

    model: str
    messages: list[tuple[str, str]]
    image: tuple[str, str] | None
    options: Given
    budget_ms: float | None
    streams: bool
    with_usage: bool

    @property
    def names(self) -> Names:
        of_image = {} if self.image is None else {"image": (self.image[1], "image")}
        return {**NAMES, **named({name: field for name, (field, _) in self.options.items()}), **of_image}


async def serve_chat(call: Call, fields: Fields) -> None:
    with call.timer.decoding():
        asked = read_chat(fields)
        model = call.model(asked.model)
    with as_fields(asked.names):
        with call.timer.decoding():
            options = checked(model, _task(model, asked), asked.options)
            image = None if asked.image is None else await image_of_url(*asked.image)
            stream = call.start(model, chat_input(model, asked.messages, options, image), asked.budget_ms)
        async with stream:
            events = chat_events(stream)
            if asked.streams:
                await _in_pieces(call, asked, stream, events)
            else:
                await _whole(call, asked, stream, events)


def _task(model: ServedModel, asked: Asked) -> str:
    try:
        return chat_task(model, asked.image is not None)
    except InvalidArgument as error:
        if asked.image is None:
            raise
        raise FieldError(asked.image[1], str(error)) from None


# ---- the request


def read_chat(fields: Fields) -> Asked:
    """Raises:  FieldError.  HttpError: there is more text than a body without an image can hold."""
    model = fields.required_text("model")
    messages, images = [], []
    for index, message in enumerate(fields.objects("messages")):
        *said, found = _message(message)
        messages.append((said[0], said[1]))
        images += [(index, image) for image in found]
    if sum(len(content) for _, content in messages) > MAX_BODY_BYTES:
        raise HttpError(413, "payload_too_large", f"the messages have more than {MAX_BODY_BYTES} characters: send less")
    # A refusal is of the first image or of the second, however many there are.
    with as_fields(named({f"turn {index}": f"messages[{index}]" for index, _ in images[:2]})):
        image = only_image(messages, images)
    streams, budget_ms = bool(fields.flag("stream")), fields.number(BUDGET)
    asked = Asked(model, messages, image, _options(fields), budget_ms, streams, _with_usage(fields, streams))
    fields.without_effect(WITHOUT_EFFECT)
    fields.refuse_rest(KNOWN)
    return asked


def _message(message: Fields) -> tuple[str, str, list[tuple[str, str]]]:
    """Role, content, and images as in Asked."""
    role = message.choice("role", (*ROLES, *OTHER_ROLES))
    if role is None:
        raise message.error("role", f"is missing, expected one of {', '.join(ROLES)}")
    content, images = _content(message)
    message.without_effect(WITHOUT_EFFECT_IN_MESSAGE)
    message.refuse_rest(("role", "content"))
    return OTHER_ROLES.get(role, role), content, images


def _content(message: Fields) -> tuple[str, list[tuple[str, str]]]:
    """A text, or parts: their texts are put together as they are, beside their images."""
    content = message.any("content")
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise message.error("content", "is no text and no list of parts, expected one of them")
    texts, images = [], []
    for index, each in enumerate(content):
        part = Fields(each, f"{message.path_of('content')}[{index}]")
        kind = part.choice("type", PARTS)
        if kind == "image_url":
            images.append(_image_url(part))
        else:
            texts.append(part.required_text("text"))
        part.refuse_rest(("type", kind or "text"))
    return "".join(texts), images


def _image_url(part: Fields) -> tuple[str, str]:
    image = Fields(part.any("image_url"), part.path_of("image_url"))
    url = image.required_text("url")
    image.without_effect({"detail": ("auto",)})
    image.refuse_rest(("url",))
    return url, image.path_of("url")


def _options(fields: Fields) -> Given:
    options = take_sampling(fields) | take_stop(fields)
    newer = fields.integer("max_completion_tokens")
    if newer is not None:
        if "max_tokens" in options:
            raise fields.error("max_completion_tokens", "is given beside max_tokens, its older name: give one of them")
        options["max_tokens"] = "max_completion_tokens", newer
    return options


def _with_usage(fields: Fields, streams: bool) -> bool:
    given = fields.any("stream_options")
    if given is None:
        return False
    if not streams:
        raise fields.error("stream_options", "is given without stream, leave it out")
    options = Fields(given, "stream_options")
    with_usage = bool(options.flag("include_usage"))
    options.without_effect({"include_obfuscation": (False,)})
    options.refuse_rest(("include_usage",))
    return with_usage


# ---- the answer


async def _whole(call: Call, asked: Asked, stream: RequestStream, events: AsyncIterator[Text | End]) -> None:
    texts, end = [], End(Reason.END)
    async for event in events:
        if isinstance(event, End):
            end = event
        else:
            texts.append(event.text)
    with call.timer.encoding():
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": FINISH_REASONS[end.reason], "logprobs": None}
        answer = {**_head(call, asked, "chat.completion"), "choices": [choice], "usage": _usage(end)}
    call.timer.timing(stream)
    await call.answer(answer)


async def _in_pieces(call: Call, asked: Asked, stream: RequestStream, events: AsyncIterator[Text | End]) -> None:
    """A request that fails before it has written anything is answered by its error alone."""
    head = _head(call, asked, "chat.completion.chunk")
    if asked.with_usage:
        head["usage"] = None
    role: dict[str, str] = {"role": "assistant"}
    async for event in events:
        if role:
            await call.begin_events()
        if isinstance(event, Text):
            await call.event(_chunk(head, {**role, "content": event.text}))
        else:
            if role:
                await call.event(_chunk(head, {**role, "content": ""}))
            await call.event(_chunk(head, {}, FINISH_REASONS[event.reason]))
            if asked.with_usage:
                await call.event({**head, "choices": [], "usage": _usage(event)})
        role = {}
    call.timer.timing(stream)
    await call.write(b"data: [DONE]\n\n")
    await call.end()


def _head(call: Call, asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": call.request_id, "object": kind, "created": call.created_s, "model": asked.model}


def _chunk(head: dict[str, Any], delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}]}


def _usage(end: End) -> dict[str, int]:
    total = end.num_input_tokens + end.num_output_tokens
    return {
        "prompt_tokens": end.num_input_tokens, "completion_tokens": end.num_output_tokens, "total_tokens": total,
    }  # fmt: skip
