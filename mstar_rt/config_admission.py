"""What a deployment takes on: how full control may make a rank, how long queues may be, what one client may hold."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError

COUNTS = ("max_queued_planning", "max_queued_generation", "max_requests_per_client", "max_sessions_per_client")
MOST = 1_000_000
LEAST_RATE = 0.1


@dataclass(frozen=True)
class AdmissionConfig:
    """On no rank may measured cost times rate, summed over control sessions, be more than `utilisation_bound`; None: no
    session is refused for it. `max_queued_*` are the requests of a class that may be unanswered at once.

    A client is whoever holds a token, or a certificate where there are no tokens, or else a connection.
    `max_messages_per_s_per_client` counts every message that it sends; None: any number.
    """

    utilisation_bound: float | None = 0.8
    max_queued_planning: int = 256
    max_queued_generation: int = 256
    max_requests_per_client: int = 128
    max_sessions_per_client: int = 128
    max_messages_per_s_per_client: float | None = 10_000.0


def check_admission(config: AdmissionConfig, where: str) -> None:
    """Raises: ConfigError."""
    bound = config.utilisation_bound
    if bound is not None and not 0 < bound <= 1:
        raise ConfigError(f"{where}.utilisation_bound is {bound:g}, expected over 0, at most 1, or null for no bound")
    rate = config.max_messages_per_s_per_client
    if rate is not None and not LEAST_RATE <= rate <= MOST:
        raise ConfigError(
            f"{where}.max_messages_per_s_per_client is {rate:g}, expected {LEAST_RATE:g} to {MOST}, or null for any"
        )
    for name in COUNTS:
        if not 1 <= getattr(config, name) <= MOST:
            raise ConfigError(f"{where}.{name} is {getattr(config, name)}, expected 1 to {MOST}")
