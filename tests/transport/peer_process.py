"""The other process of the two-process tests: `peer_process.py DIRECTORY ADDRESS ROLE`.

Roles: `echo` answers tensors with tensors one larger and everything else unchanged; `burst` sends BURST
messages before it reads any; `hold` puts tensors for the server, looks at those it gets and releases nothing;
`own` is a deployment's owner in DIRECTORY.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mstar_rt.message import AskStats, Drain, Emitted, Release, Shutdown, Stats
from mstar_rt.transport import ControlEndpoint, TensorPlane, ZmqMesh, shared_memory_plane

BURST = 20_000


def main(directory: str, address: str, role: str) -> None:
    mesh = ZmqMesh.create(Path(directory)) if role == "own" else ZmqMesh.join(directory)
    endpoint = mesh.endpoint(address)
    plane = shared_memory_plane(endpoint, mesh.deployment_id, 64 << 20)
    if role == "own":
        print(mesh.directory, flush=True)
        sys.stdin.read()
    elif role == "burst":
        burst(endpoint)
    else:
        serve(endpoint, plane, holds=role == "hold")
    plane.close()
    mesh.close()


def burst(endpoint: ControlEndpoint) -> None:
    for ask_id in range(BURST):
        endpoint.send("server", AskStats(endpoint.address, ask_id))
    num_received = 0
    while num_received < BURST:
        num_received += len(endpoint.receive(None))
    endpoint.send("server", Stats(endpoint.address, 0, {"num_received": num_received}))


def serve(endpoint: ControlEndpoint, plane: TensorPlane, holds: bool) -> None:
    endpoint.send("server", Drain())
    while True:
        for envelope in endpoint.receive(None):
            match envelope.message:
                case Shutdown():
                    return
                case Release() as record:
                    plane.on_release(record)
                case AskStats(ask_id=ask_id):
                    held = {"held_bytes": plane.num_held_bytes, "held_segments": plane.num_held_segments}
                    endpoint.send(envelope.sender, Stats(endpoint.address, ask_id, held))
                case Emitted() as record:
                    answer(endpoint, plane, envelope.sender, record, holds)
                case other:
                    endpoint.send(envelope.sender, other)


def answer(endpoint: ControlEndpoint, plane: TensorPlane, to: str, record: Emitted, holds: bool) -> None:
    tensor = plane.view(record.tensor)
    larger = tensor + tensor.dtype.type(1)
    if not holds:
        plane.release(record.tensor)
    ref = plane.put(record.tensor.dtype, larger.shape, larger, [to])
    endpoint.send(to, Emitted(record.request_id, "echo", record.index, "larger", (), ref))


if __name__ == "__main__":
    main(*sys.argv[1:])
