"""The four methods of /transport.AsyncInference, as RobotClient calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from mstar_rt.config_dialects import DialectConfig
from mstar_rt.errors import DeadlineExceeded, FailedPrecondition, MstarError, nearest
from mstar_rt.model import ServedModel
from mstar_rt.protos import lerobot_pb2 as wire
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.clients import client_name
from mstar_rt.server.compat.lerobot.payloads import PolicyInstructions, policy_instructions, timed_observation
from mstar_rt.server.compat.lerobot.places import Place, Places
from mstar_rt.server.compat.lerobot.session import LeRobotSession
from mstar_rt.server.compat.lerobot.transfer import assembled
from mstar_rt.server.compat.mapping import Mapping as DialectMapping
from mstar_rt.server.control.sessions import ControlSessions

SERVICE = "transport.AsyncInference"
POLL_S = 2.0
"""How long GetActions waits for a chunk before it says that there is none yet."""
TRANSFER_S = 30.0
"""How long the parts of one observation may take."""
WARMUP_WAIT_S = 300.0
"""How long SendPolicyInstructions waits for a model that is not warm yet: its clients expect it to load one."""


def add_lerobot(
    server: grpc.aio.Server,
    sessions: ControlSessions,
    dialects: Iterable[DialectConfig],
    models: Mapping[str, ServedModel],
    poll_s: float = POLL_S,
) -> None:
    """Serve the models of those `dialects` that are LeRobot's, which fit; without any there is no such service."""
    mappings = {each.model: DialectMapping(each, models[each.model]) for each in dialects if each.kind == "lerobot"}
    if mappings:
        server.add_generic_rpc_handlers((LeRobotService(sessions, mappings, poll_s).handlers(),))


class LeRobotService:
    """A session is a connection's: what one robot does touches no other one."""

    def __init__(self, sessions: ControlSessions, mappings: Mapping[str, DialectMapping], poll_s: float) -> None:
        self._sessions = sessions
        self._mappings = mappings
        self._poll_s = poll_s
        self._places = Places()

    def handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        empty, setup, observation = wire.Empty.FromString, wire.PolicySetup.FromString, wire.Observation.FromString
        methods: dict[str, Any] = {
            "Ready": unary(self.ready, empty, _serialized),
            "SendPolicyInstructions": unary(self.send_policy_instructions, setup, _serialized),
            "SendObservations": stream(self.send_observations, observation, _serialized),
            "GetActions": unary(self.get_actions, empty, _serialized),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def ready(self, _: wire.Empty, context: Context) -> wire.Empty:
        """A robot begins: the session that its connection had is over."""
        async with Answering(context):
            await self._places.free(context.peer())
        return wire.Empty()

    async def send_policy_instructions(self, request: wire.PolicySetup, context: Context) -> wire.Empty:
        async with Answering(context):
            await self._open(policy_instructions(request.data), context)
        return wire.Empty()

    async def send_observations(self, parts: AsyncIterator[wire.Observation], context: Context) -> wire.Empty:
        async with Answering(context):
            wait_s = self._wait_s(context) if self._places.is_opening(context.peer()) else 0.0
            place = await self._place(context, wait_s)
            with self._losing(place, context), place.sending() as session:
                async with _within(TRANSFER_S):
                    data = await assembled(parts, self._sessions.max_message_bytes)
                await session.observe(timed_observation(data))
        return wire.Empty()

    async def get_actions(self, _: wire.Empty, context: Context) -> wire.Actions:
        """RobotClient asks again at once whatever it is told, so it is told nothing at once but a chunk."""
        async with Answering(context):
            wait_s = self._wait_s(context)
            place = await self._place(context, wait_s)
            with self._losing(place, context), place.calling() as session:
                return wire.Actions(data=await session.actions(wait_s))

    @contextmanager
    def _losing(self, place: Place, context: Context) -> Iterator[None]:
        """RobotClient sets no deadline: when a call without one is cancelled, the robot has gone, or its cable."""
        try:
            yield
        except asyncio.CancelledError:
            if context.time_remaining() is None:
                self._places.lose(place)
            raise
        except MstarError:
            if place.session.has_ended:
                self._places.drop(place)
            raise

    async def _open(self, given: PolicyInstructions, context: Context) -> Place:
        mapping = self._mappings.get(given.pretrained_name_or_path)
        if mapping is None:
            raise FailedPrecondition(
                f"pretrained_name_or_path is {given.pretrained_name_or_path[:64]!r}, expected the name of a model that "
                f"is served to LeRobot clients: {nearest(given.pretrained_name_or_path, self._mappings)}"
            )
        availability = self._sessions.runner.dispatcher.availability
        async with self._places.opening(context.peer()):
            async with availability.until_closed():
                await availability.wait_for(mapping.model.name, WARMUP_WAIT_S)
            session = await LeRobotSession.opened(self._sessions, client_name(context), mapping, given)
            place = Place(context.peer(), session, mapping.dialect.idle_s)
            await self._places.put(place)
        return place

    async def _place(self, context: Context, wait_s: float) -> Place:
        """A robot that lost its connection goes on with another one, and does not say again what it had asked for.

        Raises:  FailedPrecondition: this one has asked for nothing.
        """
        peer = context.peer()
        place = self._places.get(peer)
        if place is None and not self._places.is_opening(peer) and (given := self._places.lost_by(peer)) is not None:
            place = await self._open(given, context)
        place = place or await self._places.wait_for(peer, wait_s)
        if place is None:
            raise FailedPrecondition(
                "this connection has no session: call Ready and SendPolicyInstructions first, as RobotClient.start does"
            )
        return place

    def _wait_s(self, context: Context) -> float:
        """Half of a client's deadline is left to the answer."""
        remaining_s = context.time_remaining()
        return self._poll_s if remaining_s is None else min(self._poll_s, remaining_s / 2)


@asynccontextmanager
async def _within(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"the observation did not come whole within {timeout_s:g} s") from None


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
