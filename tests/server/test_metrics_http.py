"""The endpoint for Prometheus: what it answers, and that it shares and bounds its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mstar_rt.errors import FailedPrecondition
from mstar_rt.server.metrics_http import MAX_REQUEST_BYTES, MetricsServer
from mstar_rt.server.stats import Collected


class Counted:
    """Collects as often as it is asked to, each time once it may."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def collect(self) -> Collected:
        self.num_asked += 1
        await self.may_answer.wait()
        return Collected({"server": {"requests_running": 1.0}}, {}, [])


Ask = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture
async def counted() -> Counted:
    return Counted()


@pytest.fixture
async def server(counted: Counted) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(counted.collect)
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


async def ask(server: MetricsServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_get_metrics_is_answered_with_text_and_its_length(server: MetricsServer) -> None:
    answer = await ask(server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"mstar_server_requests_running 1.0" in body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * MAX_REQUEST_BYTES + b"\r\n\r\n", b"400"),
    ],
)
async def test_anything_else_is_refused(
    server: MetricsServer, counted: Counted, request_bytes: bytes, status: bytes
) -> None:
    assert (await ask(server, request_bytes)).split()[1] == status
    assert counted.num_asked == 0


async def test_scrapes_at_the_same_time_share_one_collection(server: MetricsServer, counted: Counted) -> None:
    counted.may_answer.clear()
    texts = [asyncio.create_task(server.text()) for _ in range(5)]
    await asyncio.sleep(0)
    counted.may_answer.set()
    assert len({await text for text in texts}) == 1
    assert counted.num_asked == 1
    await server.text()
    assert counted.num_asked == 2


async def test_a_failure_is_answered_and_the_next_scrape_is_served(
    server: MetricsServer, counted: Counted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> Collected:
        raise RuntimeError("boom")

    monkeypatch.setattr(server, "collect", fails)
    assert (await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")).split()[1] == b"500"
    assert "boom" in caplog.text
    monkeypatch.setattr(server, "collect", counted.collect)
    assert (await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")).split()[1] == b"200"


async def test_a_port_that_is_taken_is_named(server: MetricsServer, counted: Counted) -> None:
    with pytest.raises(FailedPrecondition, match=f"metrics_port {server.port} of 127.0.0.1 is in use"):
        await MetricsServer(counted.collect).start("127.0.0.1", server.port)
