"""What an openpi client is told: the policy, once, and its answers."""

from __future__ import annotations

from typing import Any

from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.compat.mapping import Mapping


def metadata(mapping: Mapping) -> dict[str, Any]:
    """The first message. Clients show it, or look for keys of their own robot in it."""
    policy, layout = mapping.policy, mapping.layout
    cameras = {camera.name: camera for camera in policy.cameras}
    return {
        "server": "mstar-rt",
        "model": mapping.model.name,
        "action_horizon": policy.action_horizon,
        "action_dim": mapping.num_actions,
        "control_hz": mapping.dialect.control_hz,
        "execute": mapping.dialect.execute,
        "images": {
            source.key: {
                "camera": name,
                "size": [cameras[name].height, cameras[name].width],
                "layout": source.layout,
                "values": source.values,
                "resize": source.resize,
            }
            for name, source in layout.cameras.items()
        },
        "state": {part.key: part.size for part in layout.state},
        "instruction": None if layout.instruction is None else layout.instruction.key,
    }


def reply(mapping: Mapping, chunk: wire.ActionChunk, infer_ms: float, prev_total_ms: float | None) -> Any:
    """`infer_ms` from the arrival of the observation to its chunk; `prev_total_ms` of the answer before, with sending.
    The only arrays are [H, n]: clients cut every one of them by row.
    """
    actions = mapping.actions(chunk)
    if set(actions) == {""}:
        return actions[""]
    answer: dict[str, Any] = {
        **actions,
        "policy_timing": {"infer_ms": chunk.timing.runtime_us / 1e3},
        "server_timing": {"infer_ms": infer_ms},
    }
    if prev_total_ms is not None:
        answer["server_timing"]["prev_total_ms"] = prev_total_ms
    if chunk.flags:
        answer["flags"] = list(chunk.flags)
    return answer
