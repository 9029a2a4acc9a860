"""Services that the wire API defines and this server does not serve: each call says so."""

from __future__ import annotations

from mstar_rt.errors import Unimplemented
from mstar_rt.protos import generation_pb2
from mstar_rt.protos.generation_pb2_grpc import GenerationServicer
from mstar_rt.server.answering import Answering, Context


class GenerationService(GenerationServicer):
    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:  # noqa: N802
        async with Answering(context):
            raise Unimplemented(
                "this server has no generators for Generation.Generate: it serves policies and world models"
            )
