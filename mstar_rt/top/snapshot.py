"""What the server says at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar_rt.client import Client, ModelInfo, RuntimeStats, ServerInfo, SessionInfo
from mstar_rt.clock import Clock


@dataclass(frozen=True)
class Snapshot:
    """`at_ns` is on the caller's clock."""

    address: str
    at_ns: int
    server: ServerInfo
    models: Sequence[ModelInfo]
    sessions: Sequence[SessionInfo]
    stats: RuntimeStats


def take(client: Client, clock: Clock) -> Snapshot:
    """Raises:  Unavailable: nobody answers there."""
    stats = client.stats()
    return Snapshot(client.address, clock.now_ns(), client.server_info(), client.models(), client.sessions(), stats)
