"""The bare transport: the same bytes to another process and back over ZeroMQ, nothing else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import zmq

NUM_WARMUPS = 20


def echo_seconds(num_bytes: int, count: int) -> list[float]:
    """Seconds of each round trip, two processes on a Unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/echo"
        context = zmq.Context()
        socket = context.socket(zmq.PAIR)
        socket.bind(address)
        process = subprocess.Popen([sys.executable, __file__, address])
        try:
            seconds = [_round_trip(socket, bytes(num_bytes)) for _ in range(count + NUM_WARMUPS)]
            socket.send(b"")
            process.wait()
        finally:
            process.kill()
            socket.close(0)
            context.term()
    return seconds[NUM_WARMUPS:]


def _round_trip(socket: zmq.Socket[bytes], payload: bytes) -> float:
    start_s = time.perf_counter()
    socket.send(payload)
    assert len(socket.recv()) == len(payload)
    return time.perf_counter() - start_s


def _echo(address: str) -> None:
    """Send back all that comes, until something empty does."""
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.connect(address)
    while message := socket.recv():
        socket.send(message)
    context.destroy(0)


if __name__ == "__main__":
    _echo(sys.argv[1])
