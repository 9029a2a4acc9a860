"""Generation over gRPC."""

from __future__ import annotations

from mstar_rt.protos import generation_pb2
from mstar_rt.protos.generation_pb2_grpc import GenerationServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.clients import client_name
from mstar_rt.server.generation.messages import answers, read_request
from mstar_rt.server.task_runner import TaskRunner


class GenerationService(GenerationServicer):
    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context) as request_id:
            timer = self._runner.timer()
            model = self._runner.model(request.model)
            remaining_s = context.time_remaining()
            serving = self._runner.serving_options(request.options, timer.arrived_ns, remaining_s, client_name(context))
            with timer.decoding():
                asked = read_request(model, request)
                stream = self._runner.start(model, asked.given, serving, request_id)
            async with stream:
                async for answer in answers(asked, stream, timer):
                    await context.write(answer)
