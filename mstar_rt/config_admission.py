"""What a deployment takes on: how full control may make a rank, how long queues may be, what one client may hold."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError

COUNTS = ("max_queued_planning", "max_queued_generation", "max_requests_per_client", "max_sessions_per_client")
MOST = 1_000_000


@dataclass(frozen=True)
class AdmissionConfig:
    """On no rank may measured cost times rate, summed over control sessions, be more than `utilisation_bound`; None: no
    session is refused for it. `max_queued_*` are the requests of a class that may be unanswered at once. A client is a
    connection.
    """

    utilisation_bound: float | None = 0.8
    max_queued_planning: int = 256
    max_queued_generation: int = 256
    max_requests_per_client: int = 128
    max_sessions_per_client: int = 128


def check_admission(config: AdmissionConfig, where: str) -> None:
    """Raises: ConfigError."""
    bound = config.utilisation_bound
    if bound is not None and not 0 < bound <= 1:
        raise ConfigError(f"{where}.utilisation_bound is {bound:g}, expected over 0, at most 1, or null for no bound")
    for name in COUNTS:
        if not 1 <= getattr(config, name) <= MOST:
            raise ConfigError(f"{where}.{name} is {getattr(config, name)}, expected 1 to {MOST}")
