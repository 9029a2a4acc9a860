"""The asyncio client: the same methods as the blocking one, awaited. It belongs to the event loop it was made
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from mstar_rt.client import answers, arguments, messages, requests, results
from mstar_rt.client.asynchronous_session import AsyncWorldModelSession
from mstar_rt.client.asynchronous_tasks import AsyncTaskSession, AsyncTaskStream
from mstar_rt.client.channel import Connection
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.client.control.opening import OpensControl
from mstar_rt.client.credentials import IN_CLEAR, Credentials
from mstar_rt.client.failures import error_from_call, translated
from mstar_rt.client.generation.asynchronous_streams import AsyncChatStream, AsyncImageStream, AsyncSpeechStream
from mstar_rt.client.generation.opening import Generates
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.errors import NotFound, Unavailable
from mstar_rt.protos import runtime_pb2


def connect_async(
    address: str = "127.0.0.1:50051",
    *,
    tls_ca_file: str | None = None,
    tls_cert_file: str | None = None,
    tls_key_file: str | None = None,
    token: str | None = None,
) -> AsyncClient:
    """An asyncio client of the server at `address` ("host:port"). Connects when first used, and again when it
    must. See `connect`.
    """
    return AsyncClient(address, Credentials(tls_ca_file, tls_cert_file, tls_key_file, token))


class AsyncClient(OpensControl[AsyncControlSession], Generates[AsyncChatStream, AsyncSpeechStream, AsyncImageStream]):
    """See `blocking.Client` for what the methods take, give and raise. Cancelling a task cancels its call."""

    _control_session = AsyncControlSession
    _chat_stream = AsyncChatStream
    _speech_stream = AsyncSpeechStream
    _image_stream = AsyncImageStream

    def __init__(self, address: str, credentials: Credentials = IN_CLEAR) -> None:
        self.address = arguments.address(address)
        self._connection = Connection(credentials.opener(grpc.aio), address)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._connection.closed = True
        await self._connection.channel.close()

    # ---- world models

    async def encode(
        self,
        model: str,
        frames: Images,
        *,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
    ) -> results.Encoding:
        request = requests.encode(model, frames, budget_ms, criticality)
        with translated(self.address):
            return answers.encoding(
                await self._connection.world_model.Encode(request, timeout=arguments.timeout_s(timeout_s))
            )

    async def rollout(
        self,
        model: str,
        frames: Images | None,
        actions: Numbers,
        state: Numbers | None = None,
        *,
        latents: Numbers | None = None,
        context_actions: Numbers | None = None,
        context_states: Numbers | None = None,
        extrinsics: Numbers | None = None,
        states: Numbers | None = None,
        output: str | None = None,
        goal_frames: Images | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **model_options: Any,
    ) -> AsyncIterator[results.RolloutStep | results.RolloutDone]:
        """The steps as they are made, then the end with its timing. Closing the iterator cancels the
        rollout.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        rollout = messages.rollout(actions, states, output, goal, model_options)
        request = requests.rollout(model, context, rollout, budget_ms, criticality)
        call = self._connection.world_model.Rollout(request, timeout=arguments.timeout_s(timeout_s))
        try:
            with translated(self.address):
                async for answer in call:
                    if answer.WhichOneof("answer") == "done":
                        yield answers.rollout_done(answer.done)
                    else:
                        yield answers.rollout_step(answer.step)
        finally:
            call.cancel()

    async def plan(
        self,
        model: str,
        frames: Images | None,
        goal_frames: Images | None,
        state: Numbers,
        *,
        latents: Numbers | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        context_actions: Numbers | None = None,
        context_states: Numbers | None = None,
        extrinsics: Numbers | None = None,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> results.Plan:
        stream = self.plan_stream(
            model,
            frames,
            goal_frames,
            state,
            latents=latents,
            goal_latents=goal_latents,
            goal_use=goal_use,
            goal_weights=goal_weights,
            context_actions=context_actions,
            context_states=context_states,
            extrinsics=extrinsics,
            budget_ms=budget_ms,
            timeout_s=timeout_s,
            criticality=criticality,
            **options,
        )
        answered = [answer async for answer in stream][-1]
        assert isinstance(answered, results.Plan)
        return answered

    async def plan_stream(
        self,
        model: str,
        frames: Images | None,
        goal_frames: Images | None,
        state: Numbers,
        *,
        latents: Numbers | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        context_actions: Numbers | None = None,
        context_states: Numbers | None = None,
        extrinsics: Numbers | None = None,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> AsyncIterator[results.PlanImprovement | results.Plan]:
        """Every improvement as it is made, then the plan. Closing the iterator cancels the search."""
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        goal = messages.goal(goal_frames, goal_latents, goal_use, goal_weights)
        request = requests.plan(model, context, goal, budget_ms, criticality, options)
        call = self._connection.world_model.Plan(request, timeout=arguments.timeout_s(timeout_s))
        improvements: list[results.PlanImprovement] = []
        try:
            with translated(self.address):
                async for answer in call:
                    if answer.WhichOneof("answer") == "plan":
                        yield answers.plan(answer.plan, improvements)
                    else:
                        improvements.append(answers.improvement(answer.improvement))
                        yield improvements[-1]
        finally:
            call.cancel()

    def session(
        self,
        model: str,
        *,
        context_window: int | None = None,
        window_stride: int | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> AsyncWorldModelSession:
        """A planner's session, to be used in `async with`; see `blocking.Client.session`."""
        opening = requests.open_world_model(model, budget_ms, criticality, context_window, window_stride, options)
        return AsyncWorldModelSession(self._connection, opening)

    # ---- any model

    def run(
        self,
        model: str,
        task: str,
        tensors: Mapping[str, Numbers] | None = None,
        *,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> AsyncTaskStream:
        """Run a task by its name, with the tensors and options that `describe` lists."""
        request = requests.task(0, model, task, tensors, budget_ms, criticality, options)
        return AsyncTaskStream(
            self._connection.tasks.Run(request, timeout=arguments.timeout_s(timeout_s)), self.address
        )

    def task_session(self, model: str) -> AsyncTaskSession:
        """Requests that share what the model's tasks persist, to be used in `async with`."""
        return AsyncTaskSession(self._connection, model)

    # ---- the runtime

    async def models(self) -> list[results.ModelInfo]:
        with translated(self.address):
            response = await self._connection.runtime.ListModels(runtime_pb2.ListModelsRequest())
        return [answers.model_info(summary) for summary in response.models]

    async def describe(self, model: str, walk: str | None = None) -> results.ModelDescription:
        with translated(self.address):
            request = requests.describe(model, walk)
            return answers.description(await self._connection.runtime.DescribeModel(request))

    async def server_info(self) -> results.ServerInfo:
        with translated(self.address):
            return answers.server_info(await self._connection.runtime.ServerInfo(runtime_pb2.ServerInfoRequest()))

    async def stats(self) -> results.RuntimeStats:
        with translated(self.address):
            return answers.runtime_stats(await self._connection.runtime.Stats(runtime_pb2.StatsRequest()))

    async def sessions(self) -> list[results.SessionInfo]:
        """See `blocking.Client.sessions`."""
        with translated(self.address):
            response = await self._connection.runtime.Sessions(runtime_pb2.SessionsRequest())
        return [answers.session_info(session) for session in response.sessions]

    async def trace(self, last_s: float | None = None) -> results.RuntimeTrace:
        """See `blocking.Client.trace`."""
        with translated(self.address):
            return answers.runtime_trace(await self._connection.runtime.Trace(requests.trace(last_s)))

    async def drain(self) -> int:
        with translated(self.address):
            return int((await self._connection.runtime.Drain(runtime_pb2.DrainRequest())).num_running)

    async def wait_until_serving(self, timeout_s: float, model: str = "") -> None:
        """See `blocking.Client.wait_until_serving`."""
        waiting_s = arguments.waiting_s(timeout_s)
        request = health_pb2.HealthCheckRequest(service=arguments.text("model", model))
        try:
            async with asyncio.timeout(waiting_s):
                while not await self._watch_until_serving(request):
                    pass
        except TimeoutError:
            what = f"model {model!r}" if model else "the server"
            raise Unavailable(f"{what} at {self.address} is not serving after {timeout_s} s") from None

    async def _watch_until_serving(self, request: health_pb2.HealthCheckRequest) -> bool:
        """False if the connection was lost meanwhile."""
        call = self._connection.health.Watch(request, wait_for_ready=True)
        try:
            async for response in call:
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return True
                if response.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                    raise NotFound(f"no model {request.service!r} is served at {self.address}")
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise error_from_call(error, self.address) from None
        finally:
            call.cancel()
        return False
