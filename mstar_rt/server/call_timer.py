"""The server's share of an answer's timing: decoding, encoding, total."""

from __future__ import annotations

from collections.abc import Callable

from mstar_rt.clock import Clock
from mstar_rt.protos import request_pb2
from mstar_rt.server.request_stream import RequestStream

MAX_PIECES = 16
"""Pieces of work that are kept: a stream of answers is encoded in any number of them."""

OnAnswered = Callable[[RequestStream, request_pb2.Timing], None]


class Piece:
    """The time between entering and leaving it, told to `done`. There are several in a tick: no generator."""

    __slots__ = ("_clock", "_done", "_start_ns")

    def __init__(self, clock: Clock, done: Callable[[int, int], None]) -> None:
        self._clock = clock
        self._done = done

    def __enter__(self) -> None:
        self._start_ns = self._clock.now_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._done(self._start_ns, self._clock.now_ns())


class CallTimer:
    """Starts when a request arrives. `pieces` are the first of what was timed: (name, start_ns, end_ns)."""

    def __init__(self, clock: Clock, on_answered: OnAnswered | None = None) -> None:
        self._clock = clock
        self._on_answered = on_answered
        self.arrived_ns = clock.now_ns()
        self.decode_us = 0.0
        self._last_decoding_ns = (0, 0)
        self.pieces: list[tuple[str, int, int]] = []
        self._encode_us = 0.0

    @property
    def elapsed_us(self) -> float:
        return (self._clock.now_ns() - self.arrived_ns) / 1e3

    def decoding(self) -> Piece:
        """As `with`: a piece of the decoding. One that fails does not count."""
        return Piece(self._clock, self._decoded)

    def encoding(self) -> Piece:
        return Piece(self._clock, self._encoded)

    def _decoded(self, start_ns: int, end_ns: int) -> None:
        self.decode_us += self._piece_us("decode", start_ns, end_ns)
        self._last_decoding_ns = start_ns, end_ns

    def _encoded(self, start_ns: int, end_ns: int) -> None:
        self._encode_us += self._piece_us("encode", start_ns, end_ns)

    def _piece_us(self, name: str, start_ns: int, end_ns: int) -> float:
        if len(self.pieces) < MAX_PIECES:
            self.pieces.append((name, start_ns, end_ns))
        return (end_ns - start_ns) / 1e3

    def _decoded_late_us(self, submitted_ns: int) -> float:
        """The request is on its way before the piece ends that makes it; a busy machine may not run the server in
        between. What the request takes is not counted twice."""
        start_ns, end_ns = self._last_decoding_ns
        return max(0, end_ns - max(start_ns, submitted_ns)) / 1e3

    def timing(self, stream: RequestStream) -> request_pb2.Timing:
        """Of a request that has finished, whose last answer is made now."""
        finished = stream.finished
        assert finished is not None, "a stream that ended without an error is finished"
        nodes = [
            request_pb2.NodeTiming(
                name=name,
                num_steps=t.num_steps,
                queue_us=t.queue_us,
                run_us=t.run_us,
                batched_with=t.batched_with,
            )
            for name, t in sorted(finished.node_times.items())
        ]
        loops = [
            request_pb2.LoopTiming(
                name=name,
                num_iterations=finished.num_iterations.get(name, 0),
                run_us=finished.loop_us.get(name, 0.0),
            )
            for name in sorted(finished.loop_us.keys() | finished.num_iterations.keys())
        ]
        timing = request_pb2.Timing(
            decode_us=self.decode_us - self._decoded_late_us(stream.submitted_ns),
            queue_us=finished.wait_us,
            run_us=finished.run_us,
            # Ranks that ran at the same time account for more than there was.
            transport_us=max(stream.elapsed_us - finished.wait_us - finished.run_us, 0.0),
            nodes=nodes,
            loops=loops,
            runtime_us=finished.total_us,
            encode_us=self._encode_us,
            total_us=self.elapsed_us,
        )
        if self._on_answered is not None:
            self._on_answered(stream, timing)
        return timing
