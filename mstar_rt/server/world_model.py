"""WorldModel: encode, rollout, plan, and the planner's session."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.protos import request_pb2, world_model_pb2
from mstar_rt.protos.world_model_pb2_grpc import WorldModelServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.answers import encode_answer, plan_answers, rollout_answers
from mstar_rt.server.clients import client_name
from mstar_rt.server.inputs import (
    TaskInput,
    context_tensors,
    encode_input,
    goal_params,
    goal_tensors,
    planner_input,
    rollout_input,
    wants_distance,
)
from mstar_rt.server.session import WorldModelSession
from mstar_rt.server.task_runner import ServingOptions, TaskRunner


class WorldModelService(WorldModelServicer):
    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    async def Encode(  # noqa: N802
        self, request: world_model_pb2.EncodeRequest, context: Context
    ) -> world_model_pb2.EncodeResponse:
        async with Answering(context) as request_id:
            timer = self._runner.timer()
            model = self._runner.model(request.model)
            serving = self._serving(request.options, timer.arrived_ns, context)
            with timer.decoding():
                stream = self._runner.start(model, await encode_input(request), serving, request_id)
            async with stream:
                return await encode_answer(stream, timer)

    async def Rollout(self, request: world_model_pb2.RolloutRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context) as request_id:
            timer = self._runner.timer()
            model = self._runner.model(request.model)
            serving = self._serving(request.options, timer.arrived_ns, context)
            with timer.decoding():
                given = await _rollout_input(request)
                stream = self._runner.start(model, given, serving, request_id)
            outputs, new = output_names(model, "rollout"), world_model_pb2.RolloutResponse
            async with stream:
                async for answer in rollout_answers(stream, timer, outputs, given.batched, new):
                    await context.write(answer)

    async def Plan(self, request: world_model_pb2.PlanRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context) as request_id:
            timer = self._runner.timer()
            model = self._runner.model(request.model)
            serving = self._serving(request.options, timer.arrived_ns, context)
            with timer.decoding():
                stream = self._runner.start(model, await _plan_input(request), serving, request_id)
            improvements = request.improvements or not request.HasField("improvements")
            outputs, new = output_names(model, "plan"), world_model_pb2.PlanResponse
            async with stream:
                async for answer in plan_answers(stream, timer, outputs, improvements, new):
                    await context.write(answer)

    async def Session(  # noqa: N802
        self, requests: AsyncIterator[world_model_pb2.SessionRequest], context: Context
    ) -> None:
        async with Answering(context):
            await WorldModelSession(self._runner, context).run()

    def _serving(self, options: request_pb2.RequestOptions, arrived_ns: int, context: Context) -> ServingOptions:
        return self._runner.serving_options(options, arrived_ns, context.time_remaining(), client_name(context))


def output_names(model: ServedModel, task: str) -> list[str]:
    return [output.name for output in model.task(task).outputs]


async def _rollout_input(request: world_model_pb2.RolloutRequest) -> TaskInput:
    given = await rollout_input(request.rollout, await context_tensors(request.context))
    if wants_distance(request.rollout) and not request.rollout.HasField("goal"):
        raise InvalidArgument("the rollout asks for goal_distance without a goal, expected its frames or their latents")
    return given


async def _plan_input(request: world_model_pb2.PlanRequest) -> TaskInput:
    given = planner_input(request.planner)
    if given.params.get("warm_start"):
        raise InvalidArgument("warm_start needs the last plan, which only a session keeps: open WorldModel.Session")
    if not request.HasField("goal"):
        raise InvalidArgument("the plan has no goal, expected its frames or their latents")
    given.tensors |= await context_tensors(request.context)
    given.tensors |= await goal_tensors(request.goal)
    given.params |= goal_params(request.goal)
    return given
