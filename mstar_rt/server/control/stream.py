"""What a control session needs of whoever is at its other end."""

from __future__ import annotations

from typing import Any, Protocol

from mstar_rt.protos import control_pb2 as wire


class ControlStream(Protocol):
    """A gRPC call, or a translator in this process."""

    async def read(self) -> Any:
        """The next ControlRequest; grpc.aio.EOF once nothing more comes."""

    async def write(self, message: wire.ControlResponse, /) -> None:
        """Return once the transport has taken it."""

    def peer(self) -> str:
        """The client's address, which limits count for."""
