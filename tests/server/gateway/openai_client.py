"""OpenAI's own client against the gateway of a talker or a painter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai import DefaultHttpxClient, OpenAI
from toy_generators import talking_runtime
from toy_painter import painting_runtime
from toy_runtime import Job, Script, ToyRuntime

from mstar_rt.model import ServedModel
from mstar_rt.server.edge import EdgeConfig

ANY_KEY = "none-is-asked-for"
BROKEN = "worker/0 was lost: send it again"


@contextmanager
def served(model: ServedModel | None = None, **fields: Any) -> Iterator[ToyRuntime]:
    config = EdgeConfig(**{"port": 0, "http_port": 0, "max_message_bytes": 1 << 20, **fields})
    with talking_runtime(config, model) as running:
        yield running


@contextmanager
def painting(model: ServedModel | None = None, **fields: Any) -> Iterator[ToyRuntime]:
    config = EdgeConfig(**{"port": 0, "http_port": 0, "max_message_bytes": 1 << 20, **fields})
    with painting_runtime(config, model) as running:
        yield running


def url_of(runtime: ToyRuntime) -> str:
    """Ends with /v1."""
    assert runtime.edge.gateway is not None
    return runtime.edge.gateway.address


def client_of(runtime: ToyRuntime, api_key: str = ANY_KEY, **options: Any) -> OpenAI:
    """Tries nothing again, so that a test sees what was answered first."""
    options.setdefault("http_client", DefaultHttpxClient(verify=False))  # of no use without TLS, and long to load
    return OpenAI(base_url=url_of(runtime), api_key=api_key, max_retries=0, timeout=20.0, **options)


@contextmanager
def replaced(runtime: ToyRuntime, task: str, script: Script) -> Iterator[None]:
    before = runtime.scripts[task]
    runtime.script(task, script)
    try:
        yield
    finally:
        runtime.script(task, before)


def fails(emit: Callable[[Job, str, int], None], after: int) -> Script:
    """After so many pieces, `emit(job, "word", i)`."""

    async def run(job: Job) -> None:
        for i in range(after):
            emit(job, "word", i)
        job.fail("UNAVAILABLE", BROKEN)

    return run
