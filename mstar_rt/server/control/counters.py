"""What became of the observations of all robots, for whoever watches the server."""

from __future__ import annotations

from mstar_rt.protos import control_pb2 as wire

EVENTS = {
    kind: f"control_{name.removeprefix('KIND_').lower()}"
    for name, kind in wire.ControlEvent.Kind.items()
    if kind not in (wire.ControlEvent.KIND_UNSPECIFIED, wire.ControlEvent.KIND_RESET_DONE)
}
CHUNKS, SESSIONS = "control_chunks", "control_sessions"


class ControlCounters:
    """Counts into `values`, which the server's statistics show: events and chunks since the start, open sessions."""

    def __init__(self, values: dict[str, float]) -> None:
        self._values = values
        values.update(dict.fromkeys((SESSIONS, CHUNKS, *EVENTS.values()), 0.0))

    def said(self, message: wire.ControlResponse) -> None:
        """A message for a robot."""
        if message.HasField("chunk"):
            self._values[CHUNKS] += 1
        elif message.HasField("event") and message.event.kind in EVENTS:
            self._values[EVENTS[message.event.kind]] += 1

    def opened(self) -> None:
        self._values[SESSIONS] += 1

    def closed(self) -> None:
        self._values[SESSIONS] -= 1
