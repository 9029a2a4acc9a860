"""`Outbox`: what waits to be sent, for a transport that may be slower than the robot."""

from __future__ import annotations

from collections import deque

from mstar_rt.protos import control_pb2 as wire


class Outbox:
    """Commands go out in their order, before the newest observation, which replaces the one that still waits."""

    def __init__(self) -> None:
        self._commands: deque[wire.ControlRequest] = deque()
        self._observation: wire.ControlRequest | None = None

    def command(self, message: wire.ControlRequest) -> None:
        self._commands.append(message)

    def observe(self, message: wire.ControlRequest) -> int | None:
        """Returns the seq of the observation that this one replaces."""
        replaced, self._observation = self._observation, message
        return None if replaced is None else replaced.observation.seq

    def forget_observation(self) -> int | None:
        """Returns its seq, if there was one."""
        forgotten, self._observation = self._observation, None
        return None if forgotten is None else forgotten.observation.seq

    def clear(self) -> None:
        self._commands.clear()
        self._observation = None

    def pop(self) -> wire.ControlRequest | None:
        if self._commands:
            return self._commands.popleft()
        message, self._observation = self._observation, None
        return message

    def __bool__(self) -> bool:
        return bool(self._commands) or self._observation is not None
