"""The body of a call: read up to a limit, and taken apart."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.gateway.errors import FieldError, HttpError
from mstar_rt.server.gateway.fields import MAX_SHOWN, Fields, FormFields, parsed, without_data_urls

JSON, FORM, UTF_8 = "application/json", "multipart/form-data", "utf-8"
MAX_BODY_BYTES = 1 << 18
"""Some fifty thousand words. A larger body would keep the event loop, and robots with it, for too long: one of nothing
but short names takes 14 ms to read, an image of eight megabytes 5 ms."""
MAX_IMAGE_BODY_BYTES = 8 << 20
"""With an image in it, which is a single value however long it is: base64 of six megabytes. All beside it is at most
MAX_BODY_BYTES."""
MAX_FORM_FIELDS, MAX_FORM_FILES = 64, 4
FORM_PIECE_BYTES = 1 << 14
"""A form is taken apart in pieces, between which the event loop turns (measured: 0.2 ms at most)."""
BODY_TIMEOUT_S = 10.0


class Gone(Exception):
    """The client, before it had the whole answer."""


class BodyKind(Protocol):
    max_bytes: int

    def check(self, headers: Headers) -> None:
        """Raises:  HttpError: it does not say that it is one of this kind."""

    async def fields(self, headers: Headers, body: bytes) -> Fields:
        """Raises:  InvalidArgument: it is none.  HttpError: there is more in it than may be."""


class JsonBody:
    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.max_bytes = max_bytes

    def check(self, headers: Headers) -> None:
        _check_type(headers, JSON)  # which a page of another site cannot send

    async def fields(self, headers: Headers, body: bytes) -> Fields:
        without_urls = without_data_urls(body)
        if len(without_urls) > MAX_BODY_BYTES:
            message = f"the body has more than {MAX_BODY_BYTES} bytes beside data: URLs: send less"
            raise HttpError(413, "payload_too_large", message)
        return Fields(parsed(body, without_urls))


class FormBody:
    """Texts, and files as bytes."""

    max_bytes = MAX_IMAGE_BODY_BYTES

    def check(self, headers: Headers) -> None:
        _check_type(headers, FORM)
        for name in ("origin", "sec-fetch-site"):  # a page of any site can send a form
            if name in headers:
                raise HttpError(403, "forbidden_origin", f"the header {name!r} is of browsers, which are not let in")

    async def fields(self, headers: Headers, body: bytes) -> Fields:
        parser = _InMemory(
            headers, _pieces(body), max_files=MAX_FORM_FILES, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_BODY_BYTES
        )
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise InvalidArgument(f"the body is no form that is served here: {error.message}") from None
        try:
            if not parser.has_ended:
                raise InvalidArgument("the body is no form that is served here: its last boundary is missing")
            return FormFields(await _values(form))
        finally:
            await form.close()


async def read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    """Raises:  Gone.  HttpError: it is too large, which its header may say before any of it comes, or too slow."""
    too_large = HttpError(413, "payload_too_large", f"the body is larger than {max_bytes} bytes: send less")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise HttpError(408, "body_timeout", f"the body was not there {BODY_TIMEOUT_S:g} s after its header") from None


class _InMemory(MultiPartParser):
    """The body is in memory already: no file is written. `has_ended`: its last boundary came.

    Raises:  InvalidArgument: a form of another charset than UTF-8.  FieldError: a text that is none, which Starlette
             would take for Latin-1.  HttpError: texts that are too long together.
    """

    spool_max_size = MAX_IMAGE_BODY_BYTES
    has_ended = False
    _num_text_bytes = 0

    def on_part_begin(self) -> None:
        if not _is_utf_8(self._charset):
            raise InvalidArgument("the form is not in utf-8: leave the charset of its content-type out")
        super().on_part_begin()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._current_part
        if part.file is None:
            self._num_text_bytes += end - start
            if self._num_text_bytes > MAX_BODY_BYTES:
                name = part.field_name[:MAX_SHOWN]
                message = f"the form has more than {MAX_BODY_BYTES} bytes of text, the last in {name}: send less"
                raise HttpError(413, "payload_too_large", message, name)
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is None:
            try:
                part.data.decode(UTF_8)
            except UnicodeDecodeError as error:
                name = part.field_name[:MAX_SHOWN]
                raise FieldError(name, f"{name} is not UTF-8 at byte {error.start}: encode its text so") from None
        super().on_part_end()

    def on_end(self) -> None:
        self.has_ended = True


def _is_utf_8(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name == UTF_8
    except LookupError:
        return False


def _check_type(headers: Headers, expected: str) -> None:
    kind = headers.get("content-type", "none")
    if kind.partition(";")[0].strip().lower() != expected:
        raise HttpError(415, "unsupported_media_type", f"the content-type is {kind!r}, expected {expected}")


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), FORM_PIECE_BYTES):
        yield body[start : start + FORM_PIECE_BYTES]
        await asyncio.sleep(0)


async def _values(form: FormData) -> dict[str, str | bytes | list[str]]:
    """By name; `name[]` is one of a list.

    Raises:  FieldError: a name is there twice, a list has a file.
    """
    values: dict[str, str | bytes | list[str]] = {}
    for name, value in form.multi_items():
        if name.endswith("[]") and isinstance(value, str):
            listed = values.setdefault(name[:-2], [])
            if isinstance(listed, list):
                listed.append(value)
                continue
        name = name.removesuffix("[]")
        if name in values:
            name = name[:MAX_SHOWN]
            raise FieldError(name, f"the form has {name!r} more than once, expected it once")
        values[name] = await value.read() if isinstance(value, UploadFile) else value
    return values
