"""What the first message of a planner's session settles for all that follow."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.protos import request_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.inputs import TaskInput, planner_input
from mstar_rt.server.partial_check import check_given_options, check_given_tensors
from mstar_rt.server.task_runner import ServingOptions, TaskRunner

OBSERVE = "observe"
"""The task by which a model keeps a history."""

SEED_RANGE = 2**63
"""Seeds are int64 from 0; a message id has one bit more."""

TEMPERED_PLANNER = "mppi"
"""Whose temperature it is that a session gives without a planner."""


@dataclass(frozen=True)
class SessionSettings:
    """`window` are the options of the history that the session keeps; empty: it keeps none. `client` is the connection
    that it came by.
    """

    model: ServedModel
    planner: TaskInput
    window: dict[str, ParamValue]
    options: request_pb2.RequestOptions
    client: str = ""

    @property
    def keeps_history(self) -> bool:
        return bool(self.window)

    def with_defaults(self, given: TaskInput, message_id: int) -> TaskInput:
        """A plan draws other noise than the one before, and the same noise for the same messages."""
        seed: dict[str, ParamValue] = {"seed": message_id % SEED_RANGE}
        params = self._known("plan", seed | self.window) | self._inherited(given.params) | given.params
        return TaskInput("plan", self.planner.tensors | given.tensors, params)

    def with_window(self, given: TaskInput) -> TaskInput:
        return TaskInput(given.task, given.tensors, self._known(given.task, self.window) | given.params, given.batched)

    def serving(
        self, runner: TaskRunner, options: request_pb2.RequestOptions | None, timer: CallTimer
    ) -> ServingOptions:
        merged = request_pb2.RequestOptions()
        merged.CopyFrom(self.options)
        if options is not None:
            merged.MergeFrom(options)
        return runner.serving_options(merged, timer.arrived_ns, client=self.client)

    def _inherited(self, given: dict[str, ParamValue]) -> dict[str, ParamValue]:
        """The session's planner options, less those of its planner where a plan is made by another one."""
        own = self.planner.params.get("planner", TEMPERED_PLANNER)
        if given.get("planner", own) == own:
            return self.planner.params
        return {name: value for name, value in self.planner.params.items() if name != "temperature"}

    def _known(self, task: str, params: dict[str, ParamValue]) -> dict[str, ParamValue]:
        names = [spec.name for spec in self.model.task(task).params]
        return {name: value for name, value in params.items() if name in names}


def settings_from(runner: TaskRunner, opening: wire.OpenWorldModel, client: str) -> SessionSettings:
    """Raises:  NotFound, InvalidArgument."""
    model = runner.model(opening.model)
    planner = planner_input(opening.planner)
    check_given_options(model, ("plan",), planner.params)
    check_given_tensors(model, ("plan",), planner.tensors)
    runner.serving_options(opening.options, 0)
    return SessionSettings(model, planner, _window(model, opening, planner), opening.options, client)


def _window(model: ServedModel, opening: wire.OpenWorldModel, planner: TaskInput) -> dict[str, ParamValue]:
    fields = ("context_window", "window_stride")
    window: dict[str, ParamValue] = {name: getattr(opening, name) for name in fields if opening.HasField(name)}
    if not window:
        return {}
    if OBSERVE not in [task.name for task in model.tasks]:
        raise InvalidArgument(
            f"model {model.name!r} keeps no history, so it takes no {next(iter(window))}: "
            "send the frames of the window with each observation"
        )
    if "context_window" not in window:
        raise InvalidArgument("window_stride says how a context_window moves: give context_window too")
    for name in fields:
        if name in window and name in planner.params:
            raise InvalidArgument(
                f"option {name!r} is given twice: as a field of the session and among its planner options"
            )
    check_given_options(model, (OBSERVE,), window)
    if opening.window_stride > opening.context_window:
        raise InvalidArgument(
            f"window_stride is {opening.window_stride}, expected at most context_window = {opening.context_window}"
        )
    return window
