"""http://host:port/metrics. Made on the server's event loop in pieces of well under a millisecond, between which ticks
go on; a thread would take the interpreter from them for longer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from mstar_rt.errors import ConfigError, FailedPrecondition
from mstar_rt.server.access import Keys
from mstar_rt.server.metrics_text import CONTENT_TYPE, pieces_of
from mstar_rt.server.stats import Collected

REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 16 << 10

_log = logging.getLogger(__name__)


@dataclass
class MetricsServer:
    """Several scrapes at once share one collection. With `keys` they need one, as `Authorization: Bearer`."""

    collect: Callable[[], Awaitable[Collected]]
    keys: Keys | None = None
    port: int = 0
    _server: asyncio.Server | None = None
    _scrape: asyncio.Task[bytes] | None = None
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Raises:  FailedPrecondition: the port is in use.  ConfigError: it cannot be listened on."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=MAX_REQUEST_BYTES, ssl=tls,
                ssl_handshake_timeout=REQUEST_TIMEOUT_S if tls is not None else None,
            )  # fmt: skip
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise FailedPrecondition(
                    f"metrics_port {port} of {host} is in use: stop what listens there, or choose another one"
                ) from None
            raise ConfigError(f"cannot listen on metrics_port {port} of {host}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in [*self._calls, *([self._scrape] if self._scrape is not None else [])]:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def text(self) -> bytes:
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._make())
        return await asyncio.shield(self._scrape)

    async def _make(self) -> bytes:
        pieces = []
        for piece in pieces_of(await self.collect()):
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            status, body = await self._answer(reader)
            content_type = CONTENT_TYPE if status is HTTPStatus.OK else "text/plain; charset=utf-8"
            asks = "WWW-Authenticate: Bearer\r\n" if status is HTTPStatus.UNAUTHORIZED else ""
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n{asks}"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, OSError):
            pass  # whoever scraped has gone
        finally:
            self._calls.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, bytes]:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return HTTPStatus.BAD_REQUEST, b"expected GET /metrics\n"
        if self.keys is not None and self.keys.name_of_bearer(_authorization(head)) is None:
            return HTTPStatus.UNAUTHORIZED, b"expected Authorization: Bearer with one of this server's tokens\n"
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, b"expected GET /metrics\n"
        if path != b"/metrics":
            return HTTPStatus.NOT_FOUND, b"there is only /metrics\n"
        try:
            return HTTPStatus.OK, await self.text()
        except Exception:
            _log.exception("the metrics could not be made")
            return HTTPStatus.INTERNAL_SERVER_ERROR, b"the metrics could not be made; the server's log has why\n"


def _authorization(head: bytes) -> str | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return value.strip().decode(errors="replace")
    return None
