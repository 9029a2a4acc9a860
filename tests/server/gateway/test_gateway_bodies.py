"""Bodies with images: how large they may be, what forms may be like, and who may send them."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import painting, served, url_of
from toy_painter import NAME
from toy_runtime import ToyRuntime

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Submit
from mstar_rt.server.gateway.body import (
    MAX_BODY_BYTES,
    MAX_FORM_FIELDS,
    MAX_IMAGE_BODY_BYTES,
    FormBody,
    JsonBody,
)
from mstar_rt.server.gateway.errors import FieldError, HttpError, Refusal
from mstar_rt.server.gateway.fields import LONG_URL_BYTES, parsed, without_data_urls

FORM = "multipart/form-data; boundary=xyz"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with painting() as running:
        yield running


def answered(
    runtime: ToyRuntime, path: str, body: bytes, headers: dict[str, str], length: int | None = None
) -> tuple[int, dict[str, Any]]:
    """`length`: what the header says, whatever is sent."""
    connection = http.client.HTTPConnection(url_of(runtime).removeprefix("http://").removesuffix("/v1"), timeout=20)
    try:
        connection.putrequest("POST", path)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.load(answer)["error"]
    finally:
        connection.close()


def part(name: str, value: bytes = b"x", more: str = "") -> bytes:
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/images/edits", FORM), (CHAT, "application/json"), ("/v1/images/generations", "application/json")],
)
def test_what_is_too_large_is_refused_before_it_comes(runtime: ToyRuntime, path: str, kind: str) -> None:
    limit = MAX_BODY_BYTES if path.endswith("generations") else MAX_IMAGE_BODY_BYTES
    status, error = answered(runtime, path, b"", {"Content-Type": kind}, limit + 1)
    assert (status, error["message"]) == (413, f"the body is larger than {limit} bytes: send less")
    status, error = answered(runtime, path, b"", {"Content-Type": kind}, 10**18)
    assert (status, error["code"]) == (413, "payload_too_large")


def test_what_does_not_say_its_length_is_read_up_to_the_limit(runtime: ToyRuntime) -> None:
    connection = http.client.HTTPConnection(url_of(runtime).removeprefix("http://").removesuffix("/v1"), timeout=20)
    pieces = (b"x" * 65536 for _ in range(2 * MAX_IMAGE_BODY_BYTES // 65536))
    try:
        connection.request("POST", "/v1/images/edits", pieces, {"Content-Type": FORM}, encode_chunked=True)
    except OSError:  # it was answered, and closed, meanwhile
        pass
    else:
        assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert runtime.seen(Submit) == []


def test_beside_an_image_there_is_no_more_text_than_without(runtime: ToyRuntime) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "x" * (MAX_BODY_BYTES + 1)}]}).encode()
    for much in (body, b"[" + b"[   ]," * (1 << 16) + b"[]]"):
        status, error = answered(runtime, CHAT, much, headers)
        assert (status, error["message"]) == (413, "the body has more than 262144 bytes beside data: URLs: send less")
    data = "data:" + "x" * MAX_BODY_BYTES  # as text
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": data}]}).encode()
    status, error = answered(runtime, CHAT, body, headers)
    assert (status, error["message"]) == (413, "the messages have more than 262144 characters: send less")


def test_a_server_that_sees_nothing_takes_no_large_bodies() -> None:
    with served() as talking:
        status, _ = answered(talking, CHAT, b"", {"Content-Type": "application/json"}, MAX_BODY_BYTES + 1)
    assert status == 413


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
def test_pages_in_browsers_can_send_forms_and_are_not_let_in(runtime: ToyRuntime, name: str) -> None:
    headers = {"Content-Type": FORM, name: "null"}
    status, error = answered(runtime, "/v1/images/edits", form(part("prompt")), headers)
    assert (status, error["code"]) == (403, "forbidden_origin")
    assert "is of browsers, which are not let in" in error["message"]
    status, _ = answered(runtime, "/v1/images/edits", b"{}", {"Content-Type": "application/json"})
    assert status == 415


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"", {}, "its last boundary is missing"),
        (form(), {}, "model is missing"),
        (form(part("model")), {"Content-Type": "multipart/form-data"}, "Missing boundary"),
        (b"no form", {}, "no form that is served here"),
        (form(part("model"))[:-6], {}, "its last boundary is missing"),
        (part("model") + part("prompt"), {}, "its last boundary is missing"),
        (form(part("x[]"), part("x")), {}, "'x' more than once"),
        (form(part("x"), part("x[]")), {}, "'x' more than once"),
        (form(b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n"), {}, '"name" must be provided'),
        (form(*(part(f"field{i}") for i in range(MAX_FORM_FIELDS + 1))), {}, "Maximum number of fields is 64"),
        (form(*(part(f"f{i}", more='; filename="f"') for i in range(5))), {}, "Maximum number of files is 4"),
        (form(part("model"), part("prompt"), part("image")), {}, "no model 'x' is served"),
        (form(part("model", NAME.encode()), part("prompt"), part("image")), {}, "image is no file"),
        (form(part("model", NAME.encode()), part("prompt")), {}, "image is missing"),
        (form(part("model", more='; filename="f"')), {}, "model is a file of 1 bytes, expected text"),
        (form(part("model", NAME.encode())), {}, "prompt is missing"),
        (form(part("model", NAME.encode()), part("prompt"), part("n", b"1" * 5000)), {}, "n is "),
        (form(part("model", NAME.encode()), part("prompt"), part("seed", b"[" * 100_000)), {}, "seed is "),
        (form(part("model", NAME.encode()), part("prompt"), part("cfg_interval", b"[0.4, 1e999]")), {}, "cfg_interval is "),
    ],
)  # fmt: skip
def test_forms_that_are_refused(runtime: ToyRuntime, body: bytes, headers: dict[str, str], message: str) -> None:
    status, error = answered(runtime, "/v1/images/edits", body, {"Content-Type": FORM, **headers})
    assert status in (400, 404)
    assert message in error["message"]
    assert runtime.seen(Submit) == []


@pytest.mark.parametrize(
    ("body", "kind", "field", "message"),
    [
        (form(part("model"), part("model")), FORM, "model", "the form has 'model' more than once, expected it once"),
        (form(part("model"), part("prompt", b"caf\xe9")), FORM, "prompt", "prompt is not UTF-8 at byte 3: encode its text so"),
        (b'{"n": 1, "seed": 1, "seed": 2}', "", "seed", "the body has 'seed' more than once, expected it once"),
        (b'{"messages": [{"a": {"b": 1, "c": 2, "b": 1}}]}', "", "b", "the body has 'b' more than once"),
        (b'{"n": null, "n": null}', "", "n", "the body has 'n' more than once"),
        (b'{"url": "data:' + b"A" * 2000 + b'", "b": "data:", "b": 1}', "", "b", "the body has 'b' more than once"),
    ],
)  # fmt: skip
async def test_what_is_there_twice_or_no_text_is_refused_by_name(
    body: bytes, kind: str, field: str, message: str
) -> None:
    with pytest.raises(FieldError, match=message) as error:
        await (FormBody() if kind else JsonBody()).fields(Headers({"content-type": kind}), body)
    assert error.value.field == field


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, MAX_BODY_BYTES])
async def test_a_form_with_too_much_text_is_too_large(size: int) -> None:
    """At the size of one text alone too, as there is another."""
    body = form(part("image", b"x" * MAX_BODY_BYTES, '; filename="f"'), part("model"), part("prompt", b"x" * size))
    with pytest.raises(HttpError) as error:
        await FormBody().fields(Headers({"content-type": FORM}), body)
    refusal = Refusal(error.value, "r")
    assert refusal.status == 413
    assert refusal.body["error"] == {
        "message": "the form has more than 262144 bytes of text, the last in prompt: send less",
        "type": "invalid_request_error", "param": "prompt", "code": "payload_too_large",
    }  # fmt: skip
    body = form(part("model"), part("prompt", b"x" * (MAX_BODY_BYTES - 1)))
    assert (await FormBody().fields(Headers({"content-type": FORM}), body)).text("model") == "x"


async def test_text_that_is_as_it_says() -> None:
    body = form(part("prompt", "caf\u00e9".encode()))
    for kind in (FORM, f"{FORM}; charset=UTF8"):
        assert (await FormBody().fields(Headers({"content-type": kind}), body)).text("prompt") == "caf\u00e9"
    for charset in ("latin-1", "punycode", "none"):
        with pytest.raises(InvalidArgument, match="the form is not in utf-8"):
            await FormBody().fields(Headers({"content-type": f"{FORM}; charset={charset}"}), body)
    body = b'[{"a": 1.5}, {"a": {"a": -12345678901234567890}}]'
    assert parsed(body, body)[0] == {"a": 1.5}


TEXTS = st.builds(
    lambda head, piece, num: head + piece * num,
    st.sampled_from(["data:", 'a"data:', '\\"data:', ""]),
    st.text('a"\\,:', min_size=1, max_size=3),
    st.sampled_from([0, 1, LONG_URL_BYTES]),
)


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab", max_size=2), inner)))
def test_cutting_data_urls_changes_nothing_else(value: Any) -> None:
    def assert_cut(cut: Any, whole: Any) -> None:
        assert type(cut) is type(whole)
        if isinstance(whole, str):
            assert cut == whole or (cut.endswith("data:") and whole.startswith(cut))
            return
        assert len(cut) == len(whole)
        for one, other in zip(sorted(cut), sorted(whole), strict=True) if isinstance(whole, dict) else ():
            assert one == other
            assert_cut(cut[one], whole[other])
        for one, other in zip(cut, whole, strict=True) if isinstance(whole, list) else ():
            assert_cut(one, other)

    assert_cut(json.loads(without_data_urls(json.dumps(value).encode())), value)


async def test_the_worst_form_does_not_keep_the_event_loop() -> None:
    """Its bytes could each be the begin of a boundary. What runs beside it gets its turns."""
    body = form(part("image", b"\r\n--xy" * (1 << 16), '; filename="f"'))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    fields = await FormBody().fields(Headers({"content-type": FORM}), body)
    beside.cancel()
    assert fields.any("image") == b"\r\n--xy" * (1 << 16)
    assert turns > len(body) // (1 << 14)


async def test_all_beside_images_is_bounded_and_refused_before_it_is_read() -> None:
    for much in (b"[" + b"{}," * (2 << 20) + b"0]", b'["' + b"A" * MAX_BODY_BYTES + b'"]'):
        with pytest.raises(HttpError, match="more than 262144 bytes beside data: URLs"):
            await JsonBody(MAX_IMAGE_BODY_BYTES).fields(Headers(), much)
    image = "data:" + "A" * 2 * MAX_BODY_BYTES
    fields = await JsonBody(MAX_IMAGE_BODY_BYTES).fields(Headers(), json.dumps({"url": image}).encode())
    assert fields.text("url") == image
    with pytest.raises(InvalidArgument, match="no JSON"):
        await JsonBody().fields(Headers(), b"[")
