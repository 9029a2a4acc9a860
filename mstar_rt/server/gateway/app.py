"""What is served under which path, and to whom."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mstar_rt.errors import MstarError, Unauthenticated
from mstar_rt.model import ServedModel
from mstar_rt.server.access import Keys, is_loopback
from mstar_rt.server.clients import peer_name
from mstar_rt.server.gateway.body import MAX_BODY_BYTES, MAX_IMAGE_BODY_BYTES, FormBody, JsonBody
from mstar_rt.server.gateway.call import Call
from mstar_rt.server.gateway.chat import serve_chat
from mstar_rt.server.gateway.errors import HttpError, Refusal, UnknownModel
from mstar_rt.server.gateway.images import serve_drawing, serve_editing
from mstar_rt.server.gateway.speech import serve_speech
from mstar_rt.server.guard import COUNTED, NOT_KNOWN
from mstar_rt.server.rates import MessageRates
from mstar_rt.server.task_runner import TaskRunner

HEALTH_PATH = "/healthz"
"""Open to probes, which have no token."""
NOTHING_SHOWN = (
    "this server lets nobody in without a token: give it to the client as its api_key, which sends it as "
    "'Authorization: Bearer'"
)
OTHER_HOST = (
    "is not this machine's loopback, where this server listens: ask for localhost, or give the server tokens or "
    "`insecure: true`"
)
CALL, CERTIFICATE = "mstar_rt.call", "certificate"
"""In the scope: the Call; in its state: the name of the client's certificate, "" without one."""


def gateway_app(
    runner: TaskRunner,
    models: Mapping[str, ServedModel],
    keys: Keys | None,
    rates: MessageRates,
    is_local: bool,
) -> ASGIApp:
    """`is_local`: for programs of this machine, of which the pages in its browsers are none."""
    started_s = int(time.time())
    shown = {name: _shown(model, started_s) for name, model in models.items() if model.generation is not None}
    chat_body = JsonBody(MAX_IMAGE_BODY_BYTES if any(map(_sees, models.values())) else MAX_BODY_BYTES)

    async def list_models(call: Call) -> None:
        await call.answer({"object": "list", "data": list(shown.values())})

    async def show_model(call: Call) -> None:
        name = call.parameters["model"]
        if name in shown:
            await call.answer(shown[name])
        else:
            await call.refuse(
                UnknownModel(f"no model {name!r} writes, speaks or draws here, expected {', '.join(shown)}")
            )

    routes = [
        Route(HEALTH_PATH, _Served(_health), methods=["GET"]),
        Route("/v1/models", _Served(list_models), methods=["GET"]),
        Route("/v1/models/{model}", _Served(show_model), methods=["GET"]),
        Route("/v1/chat/completions", _Served(lambda call: call.serve(serve_chat, chat_body)), methods=["POST"]),
        Route("/v1/audio/speech", _Served(lambda call: call.serve(serve_speech)), methods=["POST"]),
        Route("/v1/images/generations", _Served(lambda call: call.serve(serve_drawing)), methods=["POST"]),
        Route("/v1/images/edits", _Served(lambda call: call.serve(serve_editing, FormBody())), methods=["POST"]),
    ]
    paths = [f"{'/'.join(sorted((route.methods or set()) - {'HEAD'}))} {route.path}" for route in routes]

    async def no_such_path(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        asked = f"{request.method} {request.url.path}"
        wrong = HttpError(error.status_code, "unknown_url", f"{asked} is not served here, expected {', '.join(paths)}")
        call: Call = request.scope[CALL]
        refusal = Refusal(wrong, call.request_id)
        headers = {"x-request-id": call.request_id, **(error.headers or {}), **refusal.headers}
        return JSONResponse(refusal.body, refusal.status, headers)

    gate = Middleware(_Gate, runner=runner, keys=keys, rates=rates, is_local=is_local)
    app = Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: no_such_path})
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class _Served:
    serve: Callable[[Call], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.serve(scope[CALL])


class _Gate:
    """Before anything that a client sends is read: who is it, may it come in, does it send too much."""

    def __init__(
        self, app: ASGIApp, runner: TaskRunner, keys: Keys | None, rates: MessageRates, is_local: bool
    ) -> None:
        self._app = app
        self._runner = runner
        self._keys = keys
        self._rates = rates
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are no websockets and no lifespan here"
        call = scope[CALL] = Call(self._runner, scope, receive, send)
        try:
            if scope["path"] != HEALTH_PATH:
                call.client = self._client(scope)
                self._rates.take(call.client)
        except MstarError as error:
            await call.refuse(error)
            return
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        """Raises:  Unauthenticated.  HttpError: a page of a browser whose host was made to mean this machine."""
        headers = Headers(scope=scope)
        if self._keys is None:
            if self._is_local and not is_loopback(_host_of(headers.get("host", ""))):
                raise HttpError(403, "forbidden_host", f"{headers.get('host')!r} {OTHER_HOST}")
            return scope["state"][CERTIFICATE] or peer_name(scope["client"])
        header = headers.get("authorization")
        name = self._keys.name_of_bearer(header)
        if name is None:
            self._runner.dispatcher.meters.counters[COUNTED] += 1
            raise Unauthenticated(NOTHING_SHOWN if header is None else NOT_KNOWN)
        return name


def _host_of(header: str) -> str:
    """Without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


async def _health(call: Call) -> None:
    """200 once every model serves, as grpc.health.v1 says of ""."""
    dispatcher = call.runner.dispatcher
    serves = not dispatcher.draining and all(state.serving for state in dispatcher.serving.values())
    await call.answer({"status": "serving" if serves else "not serving"}, 200 if serves else 503)


def _sees(model: ServedModel) -> bool:
    """Does it answer questions about images?"""
    return model.generation is not None and model.generation.chat is not None and bool(model.generation.chat.image_task)


def _shown(model: ServedModel, started_s: int) -> dict[str, Any]:
    """OpenAI's four fields, and what a client may want to know of a model of ours."""
    assert model.generation is not None
    speech, images = model.generation.speech, model.generation.images
    shown: dict[str, Any] = {"id": model.name, "object": "model", "created": started_s, "owned_by": "mstar-rt"}
    shown["tasks"] = list(model.generation.tasks)
    if speech is not None:
        shown |= {"voices": list(speech.voices), "sample_rate_hz": speech.sample_rate_hz}
    if images is not None:
        height, width = images.default_size
        shown["image_size"] = f"{width}x{height}"
    return shown
