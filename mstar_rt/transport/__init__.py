"""How the processes of a deployment talk: records over a control plane, tensors over a tensor plane."""

from mstar_rt.transport.endpoint import ControlEndpoint, Envelope
from mstar_rt.transport.in_process import InProcessHub
from mstar_rt.transport.tensor_plane import (
    DEFAULT_ARENA_BYTES,
    MAX_INLINE_BYTES,
    RELEASE_DELAY_S,
    InProcessPlanes,
    TensorPlane,
    shared_memory_plane,
)
from mstar_rt.transport.zmq_mesh import ZmqMesh

__all__ = [
    "DEFAULT_ARENA_BYTES",
    "MAX_INLINE_BYTES",
    "RELEASE_DELAY_S",
    "ControlEndpoint",
    "Envelope",
    "InProcessHub",
    "InProcessPlanes",
    "TensorPlane",
    "ZmqMesh",
    "shared_memory_plane",
]
