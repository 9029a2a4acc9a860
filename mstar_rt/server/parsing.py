"""Bytes that are no message of a call with one request are refused like any bad request, instead of by grpc's own
logging.

A stream parses while its handler reads, so there `answering` meets the error itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from mstar_rt.server.answering import Answering, Context


class ParsingInterceptor(grpc.aio.ServerInterceptor):
    """Hands the raw bytes to the handler's side of the call, where an error becomes a status with a sentence."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        behavior = getattr(handler, kind)
        if not inspect.iscoroutinefunction(behavior):
            return handler
        return handler._replace(request_deserializer=None, **{kind: _parsing(handler.request_deserializer, behavior)})


def _parsing(
    parse: Callable[[bytes], Any], behavior: Callable[[Any, Context], Awaitable[Any]]
) -> Callable[[bytes, Context], Awaitable[Any]]:
    async def parse_and_serve(data: bytes, context: Context) -> Any:
        async with Answering(context):
            request = parse(data)
        return await behavior(request, context)

    return parse_and_serve
