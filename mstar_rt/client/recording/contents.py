"""What a recording holds, by connection: which observations were answered, and where in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstar_rt.client.recording.file_format import RecordingReader
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.recording_pb2 import RecordingHeader


@dataclass
class RecordedConnection:
    """`answers`: the offset of the chunk in the file, by the seq of its observation. `seed`: as given or as the server
    has drawn it, None: neither said one. `requests`: the offsets of what followed `opening`.
    """

    header: RecordingHeader
    opening: wire.OpenControl
    requests: list[int] = field(default_factory=list)
    answers: dict[int, int] = field(default_factory=dict)
    seed: int | None = None
    num_observations: int = 0


@dataclass
class Contents:
    """`ended`: why the recording ended before its session; `torn_bytes`: at the end of the file, unreadable."""

    connections: list[RecordedConnection]
    ended: str = ""
    torn_bytes: int = 0

    @property
    def num_chunks(self) -> int:
        return sum(len(connection.answers) for connection in self.connections)

    @property
    def num_unanswered(self) -> int:
        return sum(connection.num_observations - len(connection.answers) for connection in self.connections)


def contents_of(reader: RecordingReader) -> Contents:
    contents = Contents([])
    header = RecordingHeader()
    for offset, frame in reader:
        kind = frame.WhichOneof("frame")
        if kind == "header":
            header = frame.header
        elif kind == "request" and frame.request.HasField("open"):
            contents.connections.append(_begun(header, frame.request.open))
        elif kind == "request" and contents.connections:
            contents.connections[-1].requests.append(offset)
            contents.connections[-1].num_observations += frame.request.HasField("observation")
        elif kind == "response" and contents.connections:
            _answered(contents.connections[-1], frame.response, offset)
        elif kind == "end":
            contents.ended = frame.end.reason
    contents.torn_bytes = reader.torn_bytes
    return contents


def requests_of(reader: RecordingReader, connection: RecordedConnection) -> Iterator[wire.ControlRequest]:
    for offset in connection.requests:
        yield reader.at(offset).request


def chunk_at(reader: RecordingReader, offset: int) -> wire.ActionChunk:
    return reader.at(offset).response.chunk


def _begun(header: RecordingHeader, opening: wire.OpenControl) -> RecordedConnection:
    return RecordedConnection(header, opening, seed=opening.seed if opening.HasField("seed") else None)


def _answered(connection: RecordedConnection, response: wire.ControlResponse, offset: int) -> None:
    if response.HasField("opened") and response.opened.HasField("seed"):
        connection.seed = response.opened.seed
    elif response.HasField("chunk"):
        connection.answers[response.chunk.answers_seq] = offset
