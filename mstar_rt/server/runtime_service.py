"""Runtime: what is served, how it is doing, and draining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mstar_rt
from mstar_rt.clock import Clock
from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Distribution, ServingState
from mstar_rt.model import ServedModel
from mstar_rt.model.node_place import NodePlace
from mstar_rt.protos import runtime_pb2 as wire
from mstar_rt.protos.runtime_pb2_grpc import RuntimeServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.control import region
from mstar_rt.server.schema import describe, summarize
from mstar_rt.server.task_runner import TaskRunner

SERVED = (
    "mstar.v1.Robot", "mstar.v1.WorldModel", "mstar.v1.Generation", "mstar.v1.Tasks", "mstar.v1.Runtime",
    "grpc.health.v1.Health",
)  # fmt: skip


MAX_LAST_S = 86_400.0


class RuntimeService(RuntimeServicer):
    def __init__(
        self,
        models: Mapping[str, ServedModel],
        runner: TaskRunner,
        clock: Clock,
        max_message_bytes: int,
        places: Mapping[str, Sequence[NodePlace]],
    ) -> None:
        self._models = models
        self._runner = runner
        self._dispatcher = runner.dispatcher
        self._clock = clock
        self._started_ns = clock.now_ns()
        self._max_message_bytes = max_message_bytes
        self._places = places

    async def ServerInfo(self, request: wire.ServerInfoRequest, context: Context) -> wire.ServerInfoResponse:  # noqa: N802
        async with Answering(context):
            return wire.ServerInfoResponse(
                version=mstar_rt.__version__,
                max_message_bytes=self._max_message_bytes,
                uptime_s=(self._clock.now_ns() - self._started_ns) / 1e9,
                shared_memory=region.SERVED,
                draining=self._dispatcher.draining,
                services=SERVED,
            )

    async def ListModels(self, request: wire.ListModelsRequest, context: Context) -> wire.ListModelsResponse:  # noqa: N802
        async with Answering(context):
            summaries = [summarize(self._models[name], self._state(name)) for name in sorted(self._models)]
            return wire.ListModelsResponse(models=summaries)

    async def DescribeModel(  # noqa: N802
        self, request: wire.DescribeModelRequest, context: Context
    ) -> wire.DescribeModelResponse:
        async with Answering(context):
            model = self._runner.model(request.model)
            walk = request.walk if request.HasField("walk") else None
            return describe(model, self._state(model.name), walk, self._places.get(model.name, ()))

    def _state(self, model: str) -> ServingState:
        """As health says it: nothing serves while the server drains."""
        if self._dispatcher.draining:
            return ServingState(model, False, "the server is draining")
        return self._dispatcher.serving[model]

    async def Stats(self, request: wire.StatsRequest, context: Context) -> wire.StatsResponse:  # noqa: N802
        async with Answering(context):
            stats = await self._dispatcher.collect_stats()
            processes = {
                process: wire.ProcessStats(values=values, histograms=_histograms(stats.histograms.get(process, {})))
                for process, values in stats.values.items()
            }
            return wire.StatsResponse(processes=processes, silent=stats.silent)

    async def Sessions(self, request: wire.SessionsRequest, context: Context) -> wire.SessionsResponse:  # noqa: N802
        async with Answering(context):
            return wire.SessionsResponse(sessions=self._dispatcher.meters.sessions.infos())

    async def Trace(self, request: wire.TraceRequest, context: Context) -> wire.TraceResponse:  # noqa: N802
        async with Answering(context):
            last_s = request.last_s if request.HasField("last_s") else None
            if last_s is not None and not 0 < last_s <= MAX_LAST_S:
                raise InvalidArgument(f"last_s is {last_s}, expected over 0, at most {MAX_LAST_S:.0f} seconds")
            rows, silent = await self._dispatcher.collect_traces(last_s)
            processes = [wire.ProcessTrace(process=process, rows=encoded) for process, encoded in sorted(rows.items())]
            return wire.TraceResponse(processes=processes, silent=silent)

    async def Drain(self, request: wire.DrainRequest, context: Context) -> wire.DrainResponse:  # noqa: N802
        async with Answering(context):
            return wire.DrainResponse(num_running=await self._dispatcher.drain())


def _histograms(given: Mapping[str, Distribution]) -> dict[str, wire.Histogram]:
    return {name: wire.Histogram(bounds=d.bounds, counts=d.counts, total=d.total) for name, d in given.items()}
