"""What requests could have left behind, read from a server's counters."""

from __future__ import annotations

from mstar_rt.client import RuntimeStats

HELD = (
    "requests_running", "sessions", "bytes_held", "active_walks", "ready_units", "scopes", "shared_memory_held_bytes",
    "waiting_for_room",
)  # fmt: skip


def held_in(stats: RuntimeStats) -> dict[str, float]:
    """By process and name, -1 for a process that did not answer; empty at idle, if nothing is lost."""
    left = {
        f"{process} {name}": value
        for process, values in stats.processes.items()
        for name, value in values.items()
        if value and (name in HELD or name.startswith("pages_held"))
    }
    return left | dict.fromkeys(stats.silent, -1.0)
