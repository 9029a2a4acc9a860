"""POST /v1/chat/completions, as OpenAI's client meets it."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, BadRequestError, InternalServerError, NotFoundError, OpenAI

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import BROKEN, client_of, fails, replaced, served, url_of
from toy_generators import MAX_TOKENS, NAME, talker, write
from toy_runtime import ToyRuntime

from mstar_rt.message import Submit

HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
ANSWER = "2 turns, seed 7: Hello"


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(runtime: ToyRuntime) -> Iterator[OpenAI]:
    with client_of(runtime) as opened:
        yield opened


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": NAME, "messages": HELLO, "seed": 7, **fields})


def refused(client: OpenAI, **fields: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as error:
        ask(client, **fields)
    return error.value


def params(runtime: ToyRuntime) -> dict[str, Any]:
    return runtime.seen(Submit)[-1].params


# ---- answers


def test_a_whole_answer(client: OpenAI) -> None:
    answer = ask(client)
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (14, len(ANSWER), 14 + len(ANSWER))
    assert (answer.model, answer.object, answer.id) == (NAME, "chat.completion", answer._request_id)


def test_a_streamed_answer_is_the_same(client: OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    *pieces, last, usage = chunks
    assert "".join(chunk.choices[0].delta.content for chunk in pieces) == ANSWER
    assert [chunk.choices[0].delta.role for chunk in pieces[:2]] == ["assistant", None]
    assert {chunk.choices[0].finish_reason for chunk in pieces} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage.completion_tokens) == ([], len(ANSWER))
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert {chunk.id for chunk in chunks} == {usage.id}


def test_without_the_option_no_usage_is_streamed(client: OpenAI) -> None:
    chunks = list(ask(client, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_done(runtime: ToyRuntime) -> None:
    body = json.dumps({"model": NAME, "messages": HELLO, "stream": True}).encode()
    request = urllib.request.Request(f"{url_of(runtime)}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.read().endswith(b"\n\ndata: [DONE]\n\n")


def test_reasons(client: OpenAI) -> None:
    assert ask(client, stop="seed").choices[0].message.content == "2 turns, "
    assert ask(client, stop=["xyz", ":"]).choices[0].finish_reason == "stop"
    cut = ask(client, max_tokens=5).choices[0]
    assert (cut.message.content, cut.finish_reason) == (ANSWER[:5], "length")
    assert ask(client, max_completion_tokens=5).choices[0].message.content == ANSWER[:5]


def test_the_end_of_the_stream_says_so_too(client: OpenAI) -> None:
    assert list(ask(client, stream=True, max_tokens=5))[-1].choices[0].finish_reason == "length"


def test_characters_that_take_several_tokens_arrive_whole(runtime: ToyRuntime, client: OpenAI) -> None:
    content = "".join(chunk.choices[0].delta.content or "" for chunk in ask(
        client, messages=[{"role": "user", "content": "günaydın 🦾"}], stream=True
    ))  # fmt: skip
    assert content == "1 turns, seed 7: günaydın 🦾"


# ---- requests


def test_options_reach_the_model(runtime: ToyRuntime, client: OpenAI) -> None:
    ask(client, temperature=0, top_p=0.5, stop=["a", "ß"], max_tokens=9)
    expected = {"seed": 7, "temperature": 0.0, "top_p": 0.5, "stop": '["a", "ß"]', "max_tokens": 9}
    assert params(runtime) == expected


def test_equal_seeds_are_equal_and_no_seed_is_a_fresh_one(runtime: ToyRuntime, client: OpenAI) -> None:
    assert ask(client, seed=3).choices == ask(client, seed=3).choices
    seeds = []
    for _ in range(2):
        ask(client, seed=None)
        seeds.append(params(runtime)["seed"])
    assert seeds[0] != seeds[1]


def test_parts_and_the_newer_name_of_the_system(runtime: ToyRuntime, client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day"}]
    answer = ask(client, messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert answer.choices[0].message.content == "2 turns, seed 7: Good day"


def test_an_answer_can_be_handed_back(client: OpenAI) -> None:
    messages = [*HELLO, ask(client).choices[0].message, {"role": "user", "content": "And?"}]
    assert ask(client, messages=messages).choices[0].message.content == "4 turns, seed 7: And?"


def test_what_has_no_effect_is_let_in(client: OpenAI) -> None:
    answer = ask(client, n=1, logprobs=False, frequency_penalty=0, presence_penalty=0.0, tools=[], user=None,
                 response_format={"type": "text"}, modalities=["text"], stream=False)  # fmt: skip
    assert answer.choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 2}, "n", "n is 2, which this server does not serve: leave it out, or give 1"),
        ({"logprobs": True}, "logprobs", "logprobs is true"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty is 0.5"),
        ({"user": "me"}, "user", "user is \"me\", which this server does not serve: leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "does not serve"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "does not serve"),
        ({"extra_body": {"temprature": 1}}, "temprature", "temprature is not known here, did you mean 'temperature'?"),
        ({"extra_body": {"top_k": 5}}, "top_k", "top_k is no option of model 'talker': leave it out"),
        ({"temperature": 3}, "temperature", "option 'temperature' is 3.0, expected 0.0 to 2.0"),
        ({"temperature": "hot"}, "temperature", 'temperature is "hot", expected a number'),
        ({"max_tokens": 2.5}, "max_tokens", "max_tokens is 2.5, expected a whole number"),
        ({"max_tokens": True}, "max_tokens", "max_tokens is true, expected a whole number"),
        ({"max_completion_tokens": MAX_TOKENS + 1}, "max_completion_tokens", "expected 1 to 64"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens", "beside max_tokens"),
        ({"seed": -1}, "seed", "seed is -1, expected 0 to 9223372036854775807"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "option 'max_completion_tokens' is 0, expected 1 to 64"),
        ({"stop": 5}, "stop", "stop is no text and no list of texts"),
        ({"stop": []}, "stop", "stop has 0 strings"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "not known here"),
        ({"messages": []}, "messages", "no turns"),
        ({"messages": HELLO[:1]}, "messages", "no turn of the user"),
        ({"messages": [{"role": "user", "content": "  "}]}, "messages", "no word in it"),
        ({"messages": "Hello"}, "messages", 'messages is "Hello", expected a list'),
        ({"messages": ["Hello"]}, "messages[0]", 'messages[0] is "Hello", expected a JSON object'),
        ({"messages": [{"content": "Hello"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role", "expected one of"),
        ({"messages": [{"role": "user", "content": "x", "name": "bo"}]}, "messages[0].name", "does not serve"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].image_url.url", "model 'talker' does not look at images"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
         "messages[0].content[0].type", 'is "input_audio", expected one of text, image_url'),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "no text and no list"),
        ({"extra_body": {"budget_ms": 0}}, "budget_ms", "budget_ms is 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_served_is_refused_by_name(
    runtime: ToyRuntime, client: OpenAI, fields: dict[str, Any], param: str | None, message: str
) -> None:
    num_before = len(runtime.seen(Submit))
    error = refused(client, **fields)
    assert message in error.message
    assert (error.param, error.type, error.code) == (param, "invalid_request_error", "invalid_argument")
    assert len(runtime.seen(Submit)) == num_before


def test_no_model_and_an_unknown_one(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="no model 'talkr' is served, did you mean 'talker'") as unknown:
        ask(client, model="talkr")
    assert (unknown.value.code, unknown.value.response.headers["x-should-retry"]) == ("model_not_found", "false")
    assert refused(client, model=None).param == "model"


def test_a_model_that_only_speaks(client: OpenAI) -> None:
    with served(talker(chats=False)) as speaker, client_of(speaker) as asking:
        assert "does not chat, it speaks" in refused(asking).message


# ---- failures


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_at_once_is_an_error_even_if_streamed(
    runtime: ToyRuntime, client: OpenAI, stream: bool
) -> None:
    with replaced(runtime, "chat", fails(write, 0)), pytest.raises(InternalServerError, match=BROKEN) as error:
        ask(client, stream=stream)
    assert (error.value.status_code, error.value.code) == (503, "unavailable")


def test_one_that_fails_midway_ends_the_stream_with_its_error(runtime: ToyRuntime, client: OpenAI) -> None:
    with replaced(runtime, "chat", fails(write, 1)):
        chunks = iter(ask(client, stream=True))
        assert next(chunks).choices[0].delta.content == "word"
        with pytest.raises(APIError, match=BROKEN) as error:
            next(chunks)
    assert error.value.type == "server_error"
