"""How many messages a client may send. What is over the rate is refused, with when to try again."""

from __future__ import annotations

from mstar_rt.clock import Clock
from mstar_rt.errors import ResourceExhausted

BURST_NS = 1_000_000_000
"""As many messages as the rate allows in this time may come at once."""
COUNTED = "calls_refused/rate"
MAX_IDLE = 1024
"""Clients that are remembered although they have sent little lately."""


class MessageRates:
    """`per_s` None: any rate. Of each client one number is kept: until when the messages that it has sent would have
    taken at that rate. What is refused counts into `counters`."""

    def __init__(self, per_s: float | None, clock: Clock, counters: dict[str, float] | None = None) -> None:
        self._per_s = per_s
        self._clock = clock
        self._counters = {} if counters is None else counters
        self._counters[COUNTED] = 0.0
        self._until_ns: dict[str, int] = {}

    def take(self, client: str) -> None:
        """One more message, of any kind.

        Raises:  ResourceExhausted: too many; it says when the next one is let in.
        """
        if self._per_s is None:
            return
        now_ns, each_ns = self._clock.now_ns(), int(1e9 / self._per_s)
        until_ns = max(self._until_ns.get(client, 0), now_ns) + each_ns
        too_early_ns = until_ns - now_ns - max(BURST_NS, each_ns)
        if too_early_ns > 0:
            self._counters[COUNTED] += 1
            raise self._refusal(client, too_early_ns / 1e9)
        if client not in self._until_ns and len(self._until_ns) >= MAX_IDLE:
            self._until_ns = {name: ns for name, ns in self._until_ns.items() if ns > now_ns}
        self._until_ns[client] = until_ns

    def _refusal(self, client: str, wait_s: float) -> ResourceExhausted:
        error = ResourceExhausted(
            f"client {client!r} sends over {self._per_s:g} messages a second (max_messages_per_s_per_client): send "
            f"fewer, and the next one in {wait_s:.3g} s"
        )
        error.retry_after_s = wait_s
        return error
