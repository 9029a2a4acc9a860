"""Bodies that nobody would send: each is served or refused in one sentence."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]

from fuzzing import TEXTS, WHOLE, mutated
from toy_generators import talker
from toy_painter import painter

from mstar_rt.errors import MstarError
from mstar_rt.model import ServedModel
from mstar_rt.server.gateway.chat import read_chat
from mstar_rt.server.gateway.errors import Refusal
from mstar_rt.server.gateway.fields import Fields, FormFields, parsed, without_data_urls
from mstar_rt.server.gateway.image_fields import OF_ALL, OF_OPTIONS, read_images
from mstar_rt.server.gateway.images import requests_of
from mstar_rt.server.gateway.options import checked
from mstar_rt.server.gateway.speech import read_speech
from mstar_rt.server.generation.requests import chat_input, speech_input
from mstar_rt.server.inputs import TaskInput

NUM_BODIES = 1500
PIXELS = np.zeros((8, 8, 3), np.uint8)
VALUES = (
    *TEXTS,
    *WHOLE,
    None,
    True,
    False,
    0.5,
    -1e300,
    10**400,
    [],
    {},
    [[]],
    [None],
    {"type": "text"},
    "\u2028",
    "🦾",
)
CHAT: dict[str, Any] = {
    "model": "talker", "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
    "max_tokens": 5, "temperature": 0.5, "top_p": 1, "seed": 3, "stop": ["x"], "stream": True,
    "stream_options": {"include_usage": True}, "n": 1, "tools": [], "budget_ms": 50,
}  # fmt: skip
SEEING: dict[str, Any] = {
    "model": "painter", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}},
    ]}],
    "max_tokens": 5, "temperature": 0.5, "seed": 3,
}  # fmt: skip
SPEECH: dict[str, Any] = {
    "model": "talker", "input": "a word", "voice": {"id": "bob"}, "response_format": "pcm", "stream_format": "sse",
    "speed": 1.5, "seed": 3, "playback_buffer_s": 1, "budget_ms": 50, "instructions": "",
}  # fmt: skip


DRAWING: dict[str, Any] = {
    "model": "painter", "prompt": "a barn", "n": 2, "size": "32x16", "response_format": "b64_json",
    "output_format": "png", "stream": True, "partial_images": 2, "seed": 5, "cfg_text_scale": 4, "cfg_img_scale": 1.5,
    "cfg_interval": [0.4, 1.0], "cfg_renorm_type": "global", "cfg_renorm_min": 0.5, "num_inference_steps": 8,
    "timestep_shift": 3.0, "think": True, "budget_ms": 50, "background": "auto", "quality": "auto", "max_tokens": 5,
}  # fmt: skip
EDITING: dict[str, Any] = {
    "model": "painter", "prompt": "a barn", "n": "2", "size": "auto", "stream": "true", "partial_images": "2",
    "cfg_interval": ["0.4", "1.0"], "cfg_text_scale": "4", "seed": "5", "think": "false", "image": "no file",
}  # fmt: skip


def chat(model: ServedModel, fields: Fields) -> TaskInput:
    asked = read_chat(fields)
    return chat_input(model, asked.messages, checked(model, "chat", asked.options))


def seeing(model: ServedModel, fields: Fields) -> TaskInput:
    asked = read_chat(fields)
    return chat_input(model, asked.messages, checked(model, "chat", asked.options), None)


FIELDS = {*OF_ALL, *OF_OPTIONS.values(), "think", "image"}


def drawing(model: ServedModel, fields: Fields) -> TaskInput:
    fields.required_text("model")
    return requests_of(model, read_images(fields, model, is_edit=False), None).inputs[-1]


def editing(model: ServedModel, fields: Fields) -> TaskInput:
    """As forms give it, in which all is text."""
    left = {name: as_text(value) for name in FIELDS if (value := fields.any(name)) is not None}
    fields.refuse_rest(())
    form = FormFields(left)
    form.required_text("model")
    return requests_of(model, read_images(form, model, is_edit=True), PIXELS).inputs[-1]


def as_text(value: Any) -> str | list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def speech(model: ServedModel, fields: Fields) -> TaskInput:
    asked = read_speech(fields)
    return speech_input(model, asked.text, checked(model, "speech", asked.options), asked.playback_buffer_s)


@pytest.mark.parametrize(
    ("like", "read"), [(CHAT, chat), (SPEECH, speech), (SEEING, seeing), (DRAWING, drawing), (EDITING, editing)]
)
def test_each_is_served_or_refused(like: dict[str, Any], read: Callable[[ServedModel, Fields], TaskInput]) -> None:
    model = painter() if like["model"] == "painter" else talker()
    rng, counts = random.Random(5), Counter[str]()
    encoded = json.dumps(like).encode()
    for number in range(NUM_BODIES):
        body = mutated(encoded, rng, [encoded]) if number % 2 else json.dumps(changed(like, rng)).encode()
        refusal = refused(model, body, read)
        counts["served" if refusal is None else f"{refusal.status}"] += 1
        assert refusal is None or 10 < len(refusal.body["error"]["message"]) < 1100
    assert counts.keys() == {"served", "400"}
    assert min(counts.values()) > 50, counts


def refused(model: ServedModel, body: bytes, read: Callable[[ServedModel, Fields], TaskInput]) -> Refusal | None:
    try:
        given = read(model, Fields(parsed(body, without_data_urls(body))))
        model.check_request(given.task, given.tensors, given.params)
    except MstarError as error:
        return Refusal(error, "r")
    return None


def changed(like: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Another value somewhere, or a name that nothing has."""
    body = deepcopy(like)
    for _ in range(rng.randint(1, 2)):
        inside: Any = body
        while True:
            key = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
            if not isinstance(inside[key], dict | list) or not inside[key] or rng.random() < 0.3:
                break
            inside = inside[key]
        if isinstance(inside, dict) and rng.random() < 0.1:
            inside[f"{key}_"] = inside.pop(key)
        else:
            inside[key] = rng.choice(VALUES)
    return body
