"""The blocking client. One object may be used by several threads; each session by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from mstar_rt.client import answers, arguments, messages, requests, results
from mstar_rt.client.blocking_session import WorldModelSession
from mstar_rt.client.blocking_tasks import TaskSession, TaskStream
from mstar_rt.client.channel import ON_CALLERS_THREAD, Connection
from mstar_rt.client.control.opening import OpensControl
from mstar_rt.client.control.session import ControlSession
from mstar_rt.client.credentials import IN_CLEAR, Credentials
from mstar_rt.client.failures import error_from_call, translated
from mstar_rt.client.generation.opening import Generates
from mstar_rt.client.generation.streams import ChatStream, ImageStream, SpeechStream
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.errors import NotFound, Unavailable
from mstar_rt.protos import runtime_pb2, world_model_pb2


def connect(
    address: str = "127.0.0.1:50051",
    *,
    tls_ca_file: str | None = None,
    tls_cert_file: str | None = None,
    tls_key_file: str | None = None,
    token: str | None = None,
) -> Client:
    """A client of the server at `address` ("host:port"). Connects when first used, and again whenever it
    must.

    `tls_ca_file` is a PEM file with the authority that signed the server's certificate, or with that certificate
    itself, and makes the connection one with TLS; `tls_cert_file` and `tls_key_file` are the client's own, for servers
    that ask for them. `token` goes with every call. Files are read now.

    Raises:  InvalidArgument: they do not fit together, a file cannot be used.
    """
    return Client(address, Credentials(tls_ca_file, tls_cert_file, tls_key_file, token))


class Client(OpensControl[ControlSession], Generates[ChatStream, SpeechStream, ImageStream]):
    """All methods raise the classes of mstar_rt.errors, with the server's sentence and the request id as a
    note.

    `budget_ms` is the time that the server may take from the arrival of the request; a plan answers with the
    best it has by then. `timeout_s` bounds the whole call, with the network; it fails with DeadlineExceeded.
    None: unbounded.
    """

    _control_session = ControlSession
    _chat_stream = ChatStream
    _speech_stream = SpeechStream
    _image_stream = ImageStream

    def __init__(self, address: str, credentials: Credentials = IN_CLEAR) -> None:
        self.address = arguments.address(address)
        self._connection = Connection(credentials.opener(grpc), address, ON_CALLERS_THREAD)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.closed = True
        self._connection.channel.close()

    # ---- world models

    def encode(
        self,
        model: str,
        frames: Images,
        *,
        budget_ms: float | None = None,
        timeout_s: float | None = None,
        criticality: str | None = None,
    ) -> results.Encoding:
        """Latents [T, P, D] of frames: uint8 [T, H, W, 3], or JPEG or PNG files."""
        request = requests.encode(model, frames, budget_ms, criticality)
        with translated(self.address):
            return answers.encoding(
                self._connection.world_model.Encode(request, timeout=arguments.timeout_s(timeout_s))
            )

    def rollout(
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
    ) -> RolloutStream:
        """Imagine `actions` [H, A] (or [B, H, A]) from the last frame, where the robot's pose is `state` [A].

        Several frames need `context_actions` [T-1, A] between them. `states` gives the pose at each step
        instead of having it integrated. `latents` [T, P, D] from `encode` stand in for frames. `extrinsics` [T, 6]
        are the camera's poses, where the model uses them. `output`: "latents" of every step (the default),
        "last_latent", or "goal_distance" of every step, which needs a goal (see `plan`).
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        rollout = messages.rollout(actions, states, output, goal, model_options)
        request = requests.rollout(model, context, rollout, budget_ms, criticality)
        return RolloutStream(
            self._connection.world_model.Rollout(request, timeout=arguments.timeout_s(timeout_s)), self._connection
        )

    def plan(
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
        """Actions [H, A] that bring the world from the last of `frames` to `goal_frames`. Several frames need
        `context_actions` [T-1, A] between them. Options: see PlannerOptions, `describe`.

        `goal_use`: "last" compares one goal with the last imagined step (the default), "per_step" goal h with step h,
        "nearest" the nearest of several with the last step. `goal_weights` [G] multiply their distances.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        goal = messages.goal(goal_frames, goal_latents, goal_use, goal_weights)
        request = requests.plan(model, context, goal, budget_ms, criticality, options)
        *_, plan = self._plan(request, timeout_s)
        assert isinstance(plan, results.Plan)
        return plan

    def plan_stream(
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
    ) -> Iterator[results.PlanImprovement | results.Plan]:
        """Like `plan`: every improvement as it is made, then the plan. Closing the iterator cancels the
        search.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        goal = messages.goal(goal_frames, goal_latents, goal_use, goal_weights)
        request = requests.plan(model, context, goal, budget_ms, criticality, options)
        return self._plan(request, timeout_s)

    def session(
        self,
        model: str,
        *,
        context_window: int | None = None,
        window_stride: int | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> WorldModelSession:
        """A planner's session, to be used in `with`. Budget, criticality and planner options are its
        defaults.

        `context_window`: keep a history of what is observed, of which plans and rollouts see the newest frames, at
        most so many; once it is full the window moves by `window_stride` frames at a time.
        """
        opening = requests.open_world_model(model, budget_ms, criticality, context_window, window_stride, options)
        return WorldModelSession(self._connection, opening)

    def _plan(
        self, request: world_model_pb2.PlanRequest, timeout_s: float | None
    ) -> Iterator[results.PlanImprovement | results.Plan]:
        call = self._connection.world_model.Plan(request, timeout=arguments.timeout_s(timeout_s))
        improvements: list[results.PlanImprovement] = []
        try:
            with translated(self.address):
                for answer in call:
                    if answer.WhichOneof("answer") == "plan":
                        yield answers.plan(answer.plan, improvements)
                    else:
                        improvements.append(answers.improvement(answer.improvement))
                        yield improvements[-1]
        finally:
            call.cancel()

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
    ) -> TaskStream:
        """Run a task by its name, with the tensors and options that `describe` lists."""
        request = requests.task(0, model, task, tensors, budget_ms, criticality, options)
        call = self._connection.tasks.Run(request, timeout=arguments.timeout_s(timeout_s))
        return TaskStream(call, self._connection)

    def task_session(self, model: str) -> TaskSession:
        """Requests that share what the model's tasks persist, to be used in `with`."""
        return TaskSession(self._connection, model)

    # ---- the runtime

    def models(self) -> list[results.ModelInfo]:
        with translated(self.address):
            response = self._connection.runtime.ListModels(runtime_pb2.ListModelsRequest())
        return [answers.model_info(summary) for summary in response.models]

    def describe(self, model: str, walk: str | None = None) -> results.ModelDescription:
        """Tasks with their inputs, outputs and options, and drawings of the walks (of one, if `walk` is
        given).
        """
        with translated(self.address):
            request = requests.describe(model, walk)
            return answers.description(self._connection.runtime.DescribeModel(request))

    def server_info(self) -> results.ServerInfo:
        with translated(self.address):
            return answers.server_info(self._connection.runtime.ServerInfo(runtime_pb2.ServerInfoRequest()))

    def stats(self) -> results.RuntimeStats:
        with translated(self.address):
            return answers.runtime_stats(self._connection.runtime.Stats(runtime_pb2.StatsRequest()))

    def sessions(self) -> list[results.SessionInfo]:
        """The sessions that are open, in the order in which they were opened, and how they are served."""
        with translated(self.address):
            response = self._connection.runtime.Sessions(runtime_pb2.SessionsRequest())
        return [answers.session_info(session) for session in response.sessions]

    def trace(self, last_s: float | None = None) -> results.RuntimeTrace:
        """What all processes did in the last seconds (over 0, at most 86400), or as far back as they know (a few
        thousand steps each)."""
        with translated(self.address):
            return answers.runtime_trace(self._connection.runtime.Trace(requests.trace(last_s)))

    def drain(self) -> int:
        """The server takes nothing new from now on; returns how many requests still run."""
        with translated(self.address):
            return int(self._connection.runtime.Drain(runtime_pb2.DrainRequest()).num_running)

    def wait_until_serving(self, timeout_s: float, model: str = "") -> None:
        """Wait for the server to be there and `model` (all of them if empty) to have warmed up.

        Raises:  Unavailable: not within `timeout_s`.  NotFound: the server has no such model.
        """
        end = time.monotonic() + arguments.waiting_s(timeout_s)
        request = health_pb2.HealthCheckRequest(service=arguments.text("model", model))
        while (remaining_s := end - time.monotonic()) > 0:
            try:
                for response in self._connection.health.Watch(request, timeout=remaining_s, wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                    if response.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                        raise NotFound(f"no model {model!r} is served at {self.address}")
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise error_from_call(error, self.address) from None
        what = f"model {model!r}" if model else "the server"
        raise Unavailable(f"{what} at {self.address} is not serving after {timeout_s} s")


class RolloutStream:
    """Iterate over the steps as they are made; `done` has timing and flags after the last. `cancel` ends it
    early.
    """

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection  # a call does not outlive its channel, whatever becomes of the client
        self.done: results.RolloutDone | None = None

    def __iter__(self) -> Iterator[results.RolloutStep]:
        with translated(self._connection.address):
            for answer in self._call:
                if answer.WhichOneof("answer") == "done":
                    self.done = answers.rollout_done(answer.done)
                    return  # the last word: the call's status follows, and nobody needs to wait for it
                yield answers.rollout_step(answer.step)

    def cancel(self) -> None:
        self._call.cancel()
