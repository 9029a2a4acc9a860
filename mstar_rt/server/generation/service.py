"""Generation over gRPC."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing

from mstar_rt.protos import generation_pb2
from mstar_rt.protos.generation_pb2_grpc import GenerationServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.clients import client_name
from mstar_rt.server.generation.image_requests import all_started, id_of
from mstar_rt.server.generation.messages import answers, read_request
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.task_runner import TaskRunner


class GenerationService(GenerationServicer):
    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context) as request_id, AsyncExitStack() as stack:
            timer = self._runner.timer()
            model = self._runner.model(request.model)
            remaining_s = context.time_remaining()
            serving = self._runner.serving_options(request.options, timer.arrived_ns, remaining_s, client_name(context))

            def start(given: TaskInput, index: int) -> RequestStream:
                return self._runner.start(model, given, serving, id_of(request_id, index))

            with timer.decoding():
                asked = await read_request(model, request)
                streams = await stack.enter_async_context(all_started(asked.inputs, start))
            async with aclosing(answers(asked, streams, timer)) as made:
                async for answer in made:
                    await context.write(answer)
