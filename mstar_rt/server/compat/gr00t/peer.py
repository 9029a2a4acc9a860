"""One GR00T client: its requests, one at a time, and its control session from its first observation on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mstar_rt.errors import FailedPrecondition, InvalidArgument, MstarError, Unauthenticated, Unavailable, nearest
from mstar_rt.server.access import Keys
from mstar_rt.server.compat.gr00t import codec
from mstar_rt.server.compat.mapping import OFF_LOOP_BYTES, Mapping
from mstar_rt.server.compat.robot import PATIENCE_S, ForeignObservation, ForeignRobot
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.rates import MessageRates

ENDPOINTS: dict[str, tuple[str, ...]] = {
    "ping": (), "kill": (), "get_action": ("observation", "options"), "reset": ("options",), "get_modality_config": (),
}  # fmt: skip
"""With what their data may have."""
FIELDS = ("endpoint", "data", "api_token")


class Peer:
    """`address` is the client's, for a session without a key."""

    def __init__(
        self,
        mapping: Mapping,
        sessions: ControlSessions,
        rates: MessageRates,
        keys: Keys | None,
        address: str,
        on_kill: Callable[[], None],
    ) -> None:
        self._mapping = mapping
        self._sessions = sessions
        self._rates = rates
        self._keys = keys
        self._address = address
        self._on_kill = on_kill
        self._robot: ForeignRobot | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._patience_s = 0.0 if "budget_ms" in mapping.dialect.options else PATIENCE_S

    async def answer(self, data: bytes) -> Any:
        """Raises:  MstarError: what to tell the client."""
        if self._idle is not None:
            self._idle.cancel()
        try:
            return await self._answer(data)
        finally:
            if self._robot is not None:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self._mapping.dialect.idle_s, self._leave_idle)

    async def close(self) -> None:
        """Idempotent. Its place is free when this returns."""
        if self._idle is not None:
            self._idle.cancel()
        robot, self._robot = self._robot, None
        if robot is not None:
            await robot.close()

    def _leave_idle(self) -> None:
        """The next observation opens another session."""
        task = asyncio.create_task(self.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ---- endpoints

    async def _answer(self, data: bytes) -> Any:
        self._rates.take(self._address)
        request = codec.unpack(data)
        if not isinstance(request, dict):
            raise InvalidArgument(f"the request is a {type(request).__name__}, expected a map")
        client = self._client(request)
        if self._keys is not None:
            self._rates.take(client)
        endpoint, given = _asked(request)
        if endpoint == "ping":
            return self._ping()
        if endpoint == "get_modality_config":
            return modalities(self._mapping)
        if endpoint == "kill":
            return self._kill()
        if endpoint == "reset":
            return await self._reset()
        return await self._act(await self._seen(given, len(data)), client)

    async def _seen(self, given: dict[Any, Any], num_bytes: int) -> ForeignObservation:
        observation = _map_or_nothing(given.get("observation"), "observation")
        if num_bytes > OFF_LOOP_BYTES:
            return await asyncio.to_thread(self._mapping.observation, observation)
        return self._mapping.observation(observation)

    def _client(self, request: dict[Any, Any]) -> str:
        """Raises:  Unauthenticated: it has no right key."""
        if self._keys is None:
            return self._address
        given = request.get("api_token")
        name = self._keys.name_of(given) if isinstance(given, str) else None
        if name is None:
            raise Unauthenticated("this server lets nobody in without one of its keys: give the client its api_token")
        return name

    def _ping(self) -> dict[str, str]:
        model = self._mapping.dialect.model
        dispatcher = self._sessions.runner.dispatcher
        if dispatcher.draining or not dispatcher.serving[model].serving:
            raise Unavailable(f"policy {model!r} does not serve: try again later")
        return {"status": "ok", "message": "Server is running"}

    def _kill(self) -> None:
        if not self._mapping.dialect.kill:
            raise FailedPrecondition(
                "clients may not stop this server: set kill: true in its gr00t dialect to allow it"
            )
        self._on_kill()

    async def _reset(self) -> dict[str, Any]:
        """A session that is not open yet begins with an episode of its own."""
        if self._robot is not None:
            await self._robot.reset()
        return {}

    async def _act(self, seen: ForeignObservation, client: str) -> list[Any]:
        robot = await self._opened(client)
        try:
            chunk = await robot.infer(seen, patience_s=self._patience_s)
        except MstarError:
            if robot.ended is not None:
                self._robot = None  # the next observation opens another session
            raise
        actions = {key: value[np.newaxis] for key, value in self._mapping.actions(chunk).items()}
        timing = {"run_ms": chunk.timing.runtime_us / 1e3, "total_ms": chunk.timing.total_us / 1e3}
        return [actions, {"timing": timing, "flags": list(chunk.flags)}]

    async def _opened(self, client: str) -> ForeignRobot:
        if self._robot is None:
            robot = ForeignRobot(self._sessions, client)
            await robot.open(self._mapping.opening())
            self._robot = robot
        return self._robot


def _asked(request: dict[Any, Any]) -> tuple[str, dict[Any, Any]]:
    """The endpoint and its data."""
    _check_names(request, FIELDS, "the request")
    endpoint = request.get("endpoint", "get_action")
    if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
        raise InvalidArgument(f"there is no endpoint {str(endpoint)[:64]!r}, {nearest(str(endpoint), ENDPOINTS)}")
    given = _map_or_nothing(request.get("data"), "data")
    _check_names(given, ENDPOINTS[endpoint], f"the data of {endpoint}")
    if _map_or_nothing(given.get("options"), "options"):
        raise InvalidArgument(f"{endpoint} has options, which this server has no use for: leave them out")
    return endpoint, given


def _map_or_nothing(value: Any, name: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{name} is a {type(value).__name__}, expected a map")
    return value


def _check_names(given: dict[Any, Any], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{what} has {str(name)[:64]!r}, {nearest(str(name), known)}")


def modalities(mapping: Mapping) -> dict[str, Any]:
    """By modality: keys without its name in front, and the time steps: one of observations, all of a chunk."""
    layout = mapping.layout
    observed = [source.key for source in layout.cameras.values()] + [part.key for part in layout.state]
    keys: dict[str, list[str]] = {}
    for key in observed:
        name, _, rest = key.partition(".")
        keys.setdefault(name, []).append(rest or name)
    if mapping.instruction_key is not None:
        keys["language"] = [mapping.instruction_key]
    answer = {name: codec.modality(rest, [0]) for name, rest in keys.items()}
    actions = list(layout.actions.split or (layout.actions.key,))
    answer["action"] = codec.modality(
        [key.removeprefix("action.") for key in actions], list(range(mapping.policy.action_horizon))
    )
    return answer
