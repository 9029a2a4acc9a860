"""The server's share of an answer's timing: decoding, encoding, total."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mstar_rt.clock import Clock
from mstar_rt.protos import request_pb2
from mstar_rt.server.request_stream import RequestStream

MAX_PIECES = 16
"""Pieces of work that are kept: a stream of answers is encoded in any number of them."""

OnAnswered = Callable[[RequestStream, request_pb2.Timing], None]


class CallTimer:
    """Starts when a request arrives. `pieces` are the first of what was timed: (name, start_ns, end_ns)."""

    def __init__(self, clock: Clock, on_answered: OnAnswered | None = None) -> None:
        self._clock = clock
        self._on_answered = on_answered
        self.arrived_ns = clock.now_ns()
        self.decode_us = 0.0
        self.pieces: list[tuple[str, int, int]] = []
        self._encode_us = 0.0

    @property
    def elapsed_us(self) -> float:
        return (self._clock.now_ns() - self.arrived_ns) / 1e3

    @contextmanager
    def decoding(self) -> Iterator[None]:
        start_ns = self._clock.now_ns()
        yield
        self.decode_us += self._piece_us("decode", start_ns)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        start_ns = self._clock.now_ns()
        yield
        self._encode_us += self._piece_us("encode", start_ns)

    def _piece_us(self, name: str, start_ns: int) -> float:
        end_ns = self._clock.now_ns()
        if len(self.pieces) < MAX_PIECES:
            self.pieces.append((name, start_ns, end_ns))
        return (end_ns - start_ns) / 1e3

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
            decode_us=self.decode_us,
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
