"""The server's share of an answer's timing: decoding, encoding, total."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mstar_rt.clock import Clock
from mstar_rt.message import Finished
from mstar_rt.protos import request_pb2


class CallTimer:
    """Starts when a request arrives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.arrived_ns = clock.now_ns()
        self.decode_us = 0.0
        self._encode_us = 0.0

    @property
    def elapsed_us(self) -> float:
        return (self._clock.now_ns() - self.arrived_ns) / 1e3

    @contextmanager
    def decoding(self) -> Iterator[None]:
        start = self.elapsed_us
        yield
        self.decode_us += self.elapsed_us - start

    @contextmanager
    def encoding(self) -> Iterator[None]:
        start = self.elapsed_us
        yield
        self._encode_us += self.elapsed_us - start

    def timing(self, finished: Finished) -> request_pb2.Timing:
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
        return request_pb2.Timing(
            decode_us=self.decode_us,
            queue_us=sum(t.queue_us for t in finished.node_times.values()),
            nodes=nodes,
            loops=loops,
            runtime_us=finished.total_us,
            encode_us=self._encode_us,
            total_us=self.elapsed_us,
        )
