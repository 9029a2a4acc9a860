"""From a decoded request to a running one: validation, deadline, criticality, submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstar_rt.clock import Clock
from mstar_rt.errors import DeadlineExceeded, InvalidArgument, NotFound, nearest
from mstar_rt.model import ServedModel
from mstar_rt.protos import request_pb2
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.measuring import Measuring
from mstar_rt.server.request_stream import RequestStream

CRITICALITY_NAMES = {
    request_pb2.CRITICALITY_CONTROL: "control",
    request_pb2.CRITICALITY_PLANNING: "planning",
    request_pb2.CRITICALITY_GENERATION: "generation",
}

OUTSIDE_CONTROL = {"control": "planning"}
"""A policy's task that is not run by a control session, which alone is admitted to that class."""

MAX_BUDGET_MS = 1e9
"""Eleven days: whoever asks for more has mistaken the unit."""


@dataclass(frozen=True)
class ServingOptions:
    """How to serve a request. `deadline_ns` on the server's clock; criticality None: as the task declares. `client` is
    whom it counts for: a connection, or a control session.
    """

    deadline_ns: int | None = None
    criticality: str | None = None
    client: str = ""


class TaskRunner:
    def __init__(self, models: Mapping[str, ServedModel], dispatcher: Dispatcher, clock: Clock) -> None:
        self._models = models
        self._clock = clock
        self.dispatcher = dispatcher
        self.measuring = Measuring(dispatcher, clock)

    def timer(self) -> CallTimer:
        return CallTimer(self._clock, self.dispatcher.meters.answered)

    def model(self, name: str) -> ServedModel:
        """Raises:  NotFound: names the nearest model that is served."""
        if name not in self._models:
            raise NotFound(f"no model {name!r} is served, {nearest(name, self._models)}")
        return self._models[name]

    def serving_options(
        self,
        options: request_pb2.RequestOptions,
        arrived_ns: int,
        call_remaining_s: float | None = None,
        client: str = "",
    ) -> ServingOptions:
        """`call_remaining_s` is what the gRPC deadline of a call with one request leaves; the nearer deadline
        counts.

        Raises:  InvalidArgument: a budget out of range, a criticality that this call cannot
                 have.
        """
        deadlines = []
        if options.HasField("budget_ms"):
            if not 0 < options.budget_ms <= MAX_BUDGET_MS:
                raise InvalidArgument(
                    f"budget_ms is {options.budget_ms}, expected a positive number of milliseconds, "
                    f"at most {MAX_BUDGET_MS:.0f}"
                )
            deadlines.append(arrived_ns + int(options.budget_ms * 1e6))
        if call_remaining_s is not None:
            deadlines.append(self._clock.now_ns() + int(call_remaining_s * 1e9))
        return ServingOptions(min(deadlines, default=None), _criticality(options.criticality), client)

    def start(
        self,
        model: ServedModel,
        given: TaskInput,
        serving: ServingOptions,
        request_id: str,
        session_id: str | None = None,
    ) -> RequestStream:
        """Check the whole request against the model and submit it.

        Raises:  InvalidArgument, NotFound: see ServedModel.check_request.  DeadlineExceeded: too late
                 already.
                 Unavailable, SharedMemoryExhausted: see Dispatcher.submit.
        """
        task = model.task(given.task)
        params = model.check_request(given.task, given.tensors, given.params)
        if serving.deadline_ns is not None and serving.deadline_ns <= self._clock.now_ns():
            raise DeadlineExceeded(f"the time for this {given.task} was over before it could start: give it more")
        return self.dispatcher.submit(
            model.name,
            given.task,
            given.tensors,
            params,
            request_id=request_id,
            criticality=serving.criticality or OUTSIDE_CONTROL.get(task.criticality, task.criticality),
            session_id=session_id,
            deadline_ns=serving.deadline_ns,
            client=serving.client,
            playback=given.playback,
            num_together=given.num_together,
        )


def _criticality(wire: request_pb2.Criticality) -> str | None:
    if wire == request_pb2.CRITICALITY_UNSPECIFIED:
        return None
    if wire not in CRITICALITY_NAMES:
        raise InvalidArgument(f"criticality {wire} is not known, expected {', '.join(CRITICALITY_NAMES.values())}")
    if wire == request_pb2.CRITICALITY_CONTROL:
        raise InvalidArgument("criticality control is for sessions of Robot.Control, expected planning or generation")
    return CRITICALITY_NAMES[wire]
