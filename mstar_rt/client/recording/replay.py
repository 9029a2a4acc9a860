"""`replay`: a recording against a server. Each observation is sent once the one before it is answered.

A chunk depends on what the policy sees, on the session's seed, on how many chunks were sent before it in its epoch,
and, where chunks go on from each other, on the chunk before and on the delay that it was made for. What of that the
server would reckon from time is said to it: which observations are to be answered (`Observation.wants_chunk`), and the
delay of each (`ActionChunk.delay_assumed`, as recorded). A budget that no machine exceeds takes the place of the
robot's, and so does a rate that any server has the time for.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mstar_rt.client.arguments import MAX_BUDGET_MS
from mstar_rt.client.blocking import Client
from mstar_rt.client.control.arrivals import UNANSWERED, event_from
from mstar_rt.client.failures import translated
from mstar_rt.client.recording.contents import Contents, RecordedConnection, chunk_at, contents_of, requests_of
from mstar_rt.client.recording.difference import Difference, difference
from mstar_rt.client.recording.file_format import RecordingReader
from mstar_rt.errors import MstarError, Unavailable
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.control_pb2_grpc import RobotStub

_ADMITTED_HZ = 0.01
"""Chunks per second that the server is asked to keep the time for: what comes sooner waits for those who need it."""
_OWN_CHUNKING = wire.RealTimeChunking.MODE_TEMPORAL_ENSEMBLE
"""The one that knows no delay."""


@dataclass
class Replay:
    """`num_equal` of `num_chunks` chunks came out bit for bit; `differences` are the others, in their order. After the
    first one chunks that go on from it differ, too. `seed_is_known`: of every connection.
    """

    contents: Contents
    num_chunks: int = 0
    num_equal: int = 0
    differences: list[Difference] = field(default_factory=list)
    seed_is_known: bool = True

    @property
    def first(self) -> Difference | None:
        return self.differences[0] if self.differences else None

    @property
    def largest(self) -> float:
        return max((each.largest for each in self.differences), default=0.0)


def replay(
    client: Client,
    path: str | os.PathLike[str],
    model: str | None = None,
    on_chunk: Callable[[Replay], None] = lambda replay: None,
) -> Replay:
    """Replay all sessions of the file. `model`: instead of the one that was recorded; `on_chunk` hears of each chunk.

    Raises:  FailedPrecondition: it is no recording, or the robot does not fit the policy; the message has every
    difference.  MstarError: the server refuses a session, or is lost.
    """
    with open(Path(path), "rb") as file:
        reader = RecordingReader(file)
        done = Replay(contents_of(reader))
        for number, connection in enumerate(done.contents.connections, 1):
            if connection.answers:
                _replay_connection(client, reader, connection, number, model, done, on_chunk)
        return done


def _replay_connection(
    client: Client,
    reader: RecordingReader,
    recorded: RecordedConnection,
    number: int,
    model: str | None,
    done: Replay,
    on_chunk: Callable[[Replay], None],
) -> None:
    done.seed_is_known = done.seed_is_known and recorded.seed is not None
    names = tuple(recorded.opening.schema.action.names)
    with _Stream(client, _opening(recorded, model)) as stream:
        for request in requests_of(reader, recorded):
            if not request.HasField("observation"):
                if not request.HasField("close"):
                    stream.say(request)
                continue
            offset = recorded.answers.get(request.observation.seq)
            ours = None if offset is None else chunk_at(reader, offset)
            if not _prepared(request.observation, ours, recorded):
                continue
            stream.say(request)
            if ours is None:
                continue
            done.num_chunks += 1
            theirs = stream.answer(ours.answers_seq)
            found = (
                Difference(done.num_chunks, number, ours.epoch, ours.answers_seq, f"there is none now: {theirs}")
                if isinstance(theirs, str)
                else difference(ours, theirs, done.num_chunks, number, names)
            )
            if found is None:
                done.num_equal += 1
            else:
                done.differences.append(found)
            on_chunk(done)


def _opening(recorded: RecordedConnection, model: str | None) -> wire.OpenControl:
    opening = wire.OpenControl()
    opening.CopyFrom(recorded.opening)
    opening.ClearField("takes_over")
    opening.ClearField("shared_memory")
    opening.budget_ms = MAX_BUDGET_MS
    opening.control_hz = _ADMITTED_HZ * (opening.replan_every or 1)
    if recorded.seed is not None:
        opening.seed = recorded.seed
    if model is not None:
        opening.model = model
    return opening


def _prepared(observation: wire.Observation, chunk: wire.ActionChunk | None, recorded: RecordedConnection) -> bool:
    """False: it need not be sent, as nothing depends on it."""
    keeps_history = recorded.header.policy.num_observations > 1
    if chunk is None and not keeps_history:
        return False
    observation.ClearField("budget_ms")
    opening = recorded.opening
    if opening.HasField("replan_every") or chunk is None:
        observation.wants_chunk = chunk is not None
    goes_on = opening.HasField("chunking") and opening.chunking.mode != _OWN_CHUNKING
    if chunk is not None and goes_on and not opening.chunking.HasField("delay") and not observation.HasField("delay"):
        observation.delay = chunk.delay_assumed
    return True


class _Stream:
    """One connection to the server, to be used in `with`."""

    def __init__(self, client: Client, opening: wire.OpenControl) -> None:
        self._address = client.address
        self._channel = client._connection.new_channel()
        self._requests: queue.SimpleQueue[wire.ControlRequest | None] = queue.SimpleQueue()
        self.say(wire.ControlRequest(open=opening))
        self._call: Any = RobotStub(self._channel).Control(iter(self._requests.get, None))
        self._responses = self._read()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()

    def say(self, request: wire.ControlRequest) -> None:
        self._requests.put(request)

    def answer(self, seq: int) -> wire.ActionChunk | str:
        """The chunk for that observation, or why there is none.

        Raises:  MstarError: the stream has ended.
        """
        for response in self._responses:
            if response.HasField("chunk") and response.chunk.answers_seq == seq:
                return response.chunk
            if response.HasField("event"):
                event, error = event_from(response.event)
                if event.seq == seq and event.kind in UNANSWERED:
                    return f"{event.kind}: {error}" if isinstance(error, MstarError) else event.kind
        raise Unavailable(f"the server at {self._address} has ended the session")

    def _read(self) -> Iterator[wire.ControlResponse]:
        with translated(self._address):
            yield from self._call
