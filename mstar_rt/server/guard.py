"""Before every gRPC call: who is it, may it come in, does it send too much."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from mstar_rt.errors import MstarError, ResourceExhausted, Unauthenticated
from mstar_rt.server.access import Keys
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.clients import certificate_name, client_name, set_client_name
from mstar_rt.server.rates import MessageRates

OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""They say whether a model serves, to probes and load balancers, which have no token."""
NOTHING_SHOWN = "this server lets nobody in without a token: connect with token=..., or set MSTAR_TOKEN for a command"
NOT_KNOWN = "the token is not one of this server's: ask whoever runs it for yours"

COUNTED = "calls_refused/token"

Serve = Callable[[Any, Context], Any]


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """With `keys`, a call without one of them ends before anything that it sends is read. `knows_clients`: they have
    shown certificates. Who is not let in counts into `counters`.
    """

    def __init__(
        self, keys: Keys | None, rates: MessageRates, counters: dict[str, float], knows_clients: bool = False
    ) -> None:
        self._keys = keys
        self._rates = rates
        self._counters = counters
        self._knows_clients = knows_clients
        counters[COUNTED] = 0.0

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        if self._keys is not None and handler_call_details.method not in OPEN_METHODS:
            header = _authorization(handler_call_details.invocation_metadata)
            name = self._keys.name_of_bearer(header)
            if name is None:
                self._counters[COUNTED] += 1
                return _refusing(Unauthenticated(NOTHING_SHOWN if header is None else NOT_KNOWN))
            set_client_name(name)
        handler = await continuation(handler_call_details)
        return None if handler is None else self._counted(handler)

    def _counted(self, handler: Any) -> Any:
        kind = f"{_way(handler.request_streaming)}_{_way(handler.response_streaming)}"
        serve = getattr(handler, kind)
        if inspect.isasyncgenfunction(serve):
            return handler._replace(**{kind: self._generating(serve, handler.request_streaming)})
        if inspect.iscoroutinefunction(serve):
            return handler._replace(**{kind: self._serving(serve, handler.request_streaming)})
        return handler  # a method that is declared and not served: grpc says so

    def _serving(self, serve: Serve, is_stream: bool) -> Serve:
        async def counted(request: Any, context: Context) -> Any:
            return await serve(*await self._count(request, context, is_stream))

        return counted

    def _generating(self, serve: Serve, is_stream: bool) -> Serve:
        async def counted(request: Any, context: Context) -> AsyncIterator[Any]:
            async for answer in serve(*await self._count(request, context, is_stream)):
                yield answer

        return counted

    async def _count(self, request: Any, context: Context, is_stream: bool) -> tuple[Any, Any]:
        """The same, where each message of a stream counts when it is read."""
        if self._keys is None and self._knows_clients:
            set_client_name(certificate_name(context.auth_context()))
        take = functools.partial(self._rates.take, client_name(context))
        if is_stream:
            return _counting(request, take), _CountingContext(context, take)
        try:
            take()
        except ResourceExhausted as error:
            async with Answering(context):
                raise error
        return request, context


class _CountingContext:
    """A stream's context; everything but `read` is the context's own."""

    def __init__(self, context: Context, take: Callable[[], None]) -> None:
        self._context = context
        self._take = take

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not grpc.aio.EOF:
            self._take()
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _counting(requests: AsyncIterator[Any], take: Callable[[], None]) -> AsyncIterator[Any]:
    async for request in requests:
        take()
        yield request


def _way(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _authorization(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None


def _refusing(error: MstarError) -> grpc.RpcMethodHandler:
    """Of whatever kind the method is: a handler of streams reads nothing unless it asks."""

    async def refuse(_: Any, context: Context) -> None:
        async with Answering(context):
            raise error

    return grpc.stream_stream_rpc_method_handler(refuse)
