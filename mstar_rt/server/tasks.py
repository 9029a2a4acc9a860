"""Tasks: any task of any model, one request or a session of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mstar_rt.errors import MstarError
from mstar_rt.protos import task_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, fill_tensor
from mstar_rt.protos.task_pb2_grpc import TasksServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.clients import client_name
from mstar_rt.server.inputs import TaskInput, add_model_options
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.task_runner import TaskRunner
from mstar_rt.server.task_session import TaskSession, Write


class TasksService(TasksServicer):
    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    async def Run(self, request: wire.TaskRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context) as request_id:
            await self._run(request, context.write, request_id, None, context.time_remaining(), client_name(context))

    async def Session(self, requests: AsyncIterator[wire.TaskRequest], context: Context) -> None:  # noqa: N802
        async with Answering(context):
            dispatcher = self._runner.dispatcher
            async with dispatcher.availability.until_closed():
                first = await anext(aiter(requests), None)
            if first is None:
                return
            self._runner.model(first.model)
            session_id = await dispatcher.open_session(first.model, client=client_name(context))

            meter = dispatcher.meters.sessions.open(session_id, "tasks", first.model, client_name(context))

            async def run(request: wire.TaskRequest, request_id: str, write: Write) -> None:
                timer = self._runner.timer()
                try:
                    await self._run(request, write, request_id, session_id, None, client_name(context))
                except MstarError as error:
                    meter.command(timer, error)
                    raise
                meter.command(timer, None)

            try:
                await TaskSession(first.model, context, dispatcher.availability, run).serve(first, requests)
            finally:
                dispatcher.meters.sessions.close(meter)
                dispatcher.close_session(session_id)

    async def _run(
        self,
        request: wire.TaskRequest,
        write: Write,
        request_id: str,
        session_id: str | None,
        call_remaining_s: float | None,
        client: str,
    ) -> None:
        timer = self._runner.timer()
        model = self._runner.model(request.model)
        serving = self._runner.serving_options(request.options, timer.arrived_ns, call_remaining_s, client)
        with timer.decoding():
            stream = self._runner.start(model, _task_input(request), serving, request_id, session_id)
        async with stream:
            async for answer in _answers(stream, timer, request.message_id):
                await write(answer)


def _task_input(request: wire.TaskRequest) -> TaskInput:
    given = TaskInput(request.task)
    given.tensors = {name: array_from_tensor(tensor, name) for name, tensor in request.tensors.items()}
    add_model_options(given.params, request.model_options)
    return given


async def _answers(stream: RequestStream, timer: CallTimer, message_id: int) -> AsyncIterator[wire.TaskResponse]:
    async for emission in stream:
        answer = wire.TaskResponse(answers=message_id)
        with timer.encoding():
            output = answer.output
            output.name, output.walk = emission.name, emission.walk
            output.iteration.extend(emission.iteration)
            fill_tensor(output.tensor, emission.dtype, emission.shape, emission.data)
        yield answer
    assert stream.finished is not None, "a stream that ended without an error is finished"
    finished = stream.finished
    done = wire.TaskDone(request_id=stream.request_id, timing=timer.timing(stream), flags=finished.flags)
    yield wire.TaskResponse(answers=message_id, done=done)
