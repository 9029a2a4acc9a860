"""One openpi client: an observation in, a chunk out, one at a time, from its handshake to its end."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from mstar_rt.clock import Clock
from mstar_rt.errors import InvalidArgument, MstarError, ResourceExhausted
from mstar_rt.protos import request_pb2
from mstar_rt.server.answering import error_detail
from mstar_rt.server.compat.mapping import OFF_LOOP_BYTES, Mapping
from mstar_rt.server.compat.openpi.codec import OpenpiCodec
from mstar_rt.server.compat.openpi.replies import metadata, reply
from mstar_rt.server.compat.robot import PATIENCE_S, ForeignObservation, ForeignRobot
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.rates import MessageRates

MAX_REASON_BYTES = 120
"""What a close frame has room for is 123."""
FULL = "no time for one more robot: have it execute more of each chunk, or try again later; the server's log has more"
ENDPOINT, SESSION_ID = "endpoint", "session_id"
RESET_DONE = "reset successful"

_log = logging.getLogger(__name__)


class Conversation:
    """`idle` is set while nothing is computed for the client."""

    def __init__(
        self, connection: ServerConnection, mapping: Mapping, robot: ForeignRobot, rates: MessageRates, client: str,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._mapping = mapping
        self._robot = robot
        self._rates = rates
        self._client = client
        self._clock = clock
        self.idle = asyncio.Event()
        self.idle.set()
        self._codec = OpenpiCodec()
        self._is_vllm_omni = mapping.dialect.preset == "vllm_omni"
        self._patience_s = 0.0 if "budget_ms" in mapping.dialect.options else PATIENCE_S
        self._robots_session: Any = None
        self._prev_total_ms: float | None = None

    async def run(self) -> None:
        """Until the client goes, is silent for too long, or gets an error. What runs for a client that has gone is
        taken back at once.
        """
        talking = asyncio.create_task(self._talk())
        gone = asyncio.create_task(self._connection.wait_closed())
        try:
            await asyncio.wait([talking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (talking, gone):
                task.cancel()
            await asyncio.gather(talking, gone, return_exceptions=True)
            await self._robot.close()
        if not talking.cancelled():
            talking.result()

    async def _talk(self) -> None:
        try:
            if not await self._open():
                return
            while True:
                heard = await self._heard()
                self.idle.clear()
                await self._answer(heard)
                self.idle.set()
        except ConnectionClosed:
            return
        except TimeoutError:
            idle_s = self._mapping.dialect.idle_s
            await self._connection.close(CloseCode.NORMAL_CLOSURE, f"nothing came for {idle_s:g} s (idle_timeout_s)")

    async def _open(self) -> bool:
        """A client that is refused reads why as the reason of the close frame: it expects the metadata, or nothing."""
        try:
            await self._robot.open(self._mapping.opening())
        except Exception as error:
            await self._refuse(error_detail(error, new_id("r")))
            return False
        await self._connection.send(self._codec.pack(metadata(self._mapping)))
        return True

    async def _heard(self) -> bytes | str:
        async with asyncio.timeout(self._mapping.dialect.idle_s):
            return await self._connection.recv()

    async def _answer(self, heard: bytes | str) -> None:
        arrived_ns = self._clock.now_ns()
        try:
            answer = await self._answer_to(heard, arrived_ns)
        except ConnectionClosed:
            raise
        except Exception as error:
            await self._say_error(error)
            return
        await self._connection.send(answer)
        self._prev_total_ms = (self._clock.now_ns() - arrived_ns) / 1e6

    async def _answer_to(self, heard: bytes | str, arrived_ns: int) -> bytes | str:
        self._rates.take(self._client)
        if isinstance(heard, str):
            raise InvalidArgument("a text came, expected observations as binary msgpack")
        if len(heard) > OFF_LOOP_BYTES:
            message, seen = await asyncio.to_thread(self._understood, heard)
        else:
            message, seen = self._understood(heard)
        if await self._resets(message):
            return RESET_DONE
        assert seen is not None, "whatever is no reset is an observation"
        chunk = await self._robot.infer(seen, patience_s=self._patience_s)
        infer_ms = (self._clock.now_ns() - arrived_ns) / 1e6
        return self._codec.pack(reply(self._mapping, chunk, infer_ms, self._prev_total_ms))

    def _understood(self, heard: bytes) -> tuple[dict[Any, Any], ForeignObservation | None]:
        """The message, and its observation unless it is a reset."""
        message = self._codec.unpack(heard)
        if not isinstance(message, dict):
            raise InvalidArgument(f"the message is a {type(message).__name__}, expected a map of the observation")
        about = message
        if self._is_vllm_omni:
            about = {key: value for key, value in message.items() if key not in (ENDPOINT, SESSION_ID)}
            if not isinstance(message.get(SESSION_ID), str | int | None):
                raise InvalidArgument("session_id is no text and no number")
            endpoint = message.get(ENDPOINT, "infer")
            if not isinstance(endpoint, str) or endpoint not in ("infer", "reset"):
                raise InvalidArgument(f"endpoint is {str(endpoint)[:64]!r}, expected infer or reset")
            if endpoint == "reset":
                return message, None
        return message, self._mapping.observation(about)

    async def _resets(self, message: dict[Any, Any]) -> bool:
        """vLLM-Omni's clients say when an episode begins: by a message of its own, or by another session_id."""
        if not self._is_vllm_omni:
            return False
        is_reset, session = message.get(ENDPOINT) == "reset", message.get(SESSION_ID)
        if is_reset or (session is not None and self._robots_session not in (None, session)):
            await self._robot.reset()
        self._robots_session = None if is_reset else session
        return is_reset

    # ---- errors

    async def _say_error(self, error: Exception) -> None:
        """One sentence without traces, as a text; then the end. vLLM-Omni's clients go on after an error of theirs."""
        detail = error_detail(error, new_id("r"))
        if self._is_vllm_omni:
            await self._connection.send(json.dumps({"type": "error", "code": detail.code, "error": detail.message}))
            if isinstance(error, MstarError) and self._robot.ended is None:
                return
        else:
            await self._connection.send(detail.message)
        await self._close(detail.message)

    async def _refuse(self, detail: request_pb2.ErrorDetail) -> None:
        """What does not fit into a close frame is in the log."""
        _log.warning("a client at %s is refused: %s", self._client, detail.message)
        is_long = len(detail.message.encode()) > MAX_REASON_BYTES
        await self._close(FULL if is_long and detail.code == ResourceExhausted.code else detail.message)

    async def _close(self, why: str) -> None:
        reason = why.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self._connection.close(CloseCode.INTERNAL_ERROR, reason)
