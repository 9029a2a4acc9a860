"""Foreign clients: what each dialect costs beside native control sessions, and beside the server that openpi ships.

openpi's server runs its policy on the event loop that talks to the clients. Its pattern is rebuilt here
(`benchmarks.dialects.pattern`), and runs the same policies.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.control import WEIGHTS
from benchmarks.noop.policy import ACTION, CAMERAS, STATE
from sim_bridge.server_process import served

NOOP, SLOW, POLICY = "noop", "slow", "policy"
SLOW_MS = 500.0
"""How long `slow` takes for a chunk, and does nothing."""
CONTROL_HZ = 30.0
JOINTS = tuple(f"joint_{index}.pos" for index in range(STATE))


@dataclass(frozen=True)
class Serving:
    """`ports` of the openpi dialect by model, and of the GR00T one."""

    address: str
    openpi: dict[str, int]
    gr00t: int


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    from benchmarks.dialects.measure import measure

    with dialects_served() as serving:
        return measure(serving, args)


@contextlib.contextmanager
def dialects_served() -> Iterator[Serving]:
    """Each policy on a worker of one thread. No robot is refused for load: overload is measured."""
    *ports, gr00t = _free_ports(4)
    openpi = dict(zip((NOOP, SLOW, POLICY), ports, strict=True))
    data = {
        "name": "dialects",
        "workers": [
            {"rank": rank, "threads": 1, "max_batch": 16, "kv_memory_mb": 64, "shared_memory_mb": 256}
            for rank in range(3)
        ],
        "models": [
            {"name": NOOP, "family": "benchmarks.noop.policy:declare"},
            {"name": SLOW, "family": "benchmarks.noop.policy:declare", "options": {"hold_ms": SLOW_MS}},
            {"name": POLICY, "family": "pi05", "checkpoint": str(WEIGHTS)},
        ],
        "placement": [
            {"model": model, "nodes": ["*"], "ranks": [rank]} for rank, model in enumerate((NOOP, SLOW, POLICY))
        ],
        "admission": {"utilisation_bound": None},
        "dialects": [*(_openpi(model, port) for model, port in openpi.items()), _gr00t(gr00t), _lerobot()],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dialects.yaml"
        file.write_text(yaml.safe_dump(data))
        with served(file) as address:
            yield Serving(address, openpi, gr00t)


def _block(kind: str, **more: Any) -> dict[str, Any]:
    """Without budget: the baseline has none."""
    return {"kind": kind, "control_hz": CONTROL_HZ, "execute": 1, "options": {"budget_ms": 60_000.0}, **more}


def _openpi(model: str, port: int) -> dict[str, Any]:
    if model == POLICY:
        cameras, state, told = ("top", "wrist"), 2, {"instruction": {"key": "prompt"}}
    else:
        cameras, state, told = tuple(camera.name for camera in CAMERAS), STATE, {}
    return _block(
        "openpi", model=model, port=port, cameras={name: {"key": f"observation/{name}"} for name in cameras},
        state=[{"key": "observation/state", "size": state}], **told,
    )  # fmt: skip


def _gr00t(port: int) -> dict[str, Any]:
    return _block(
        "gr00t", model=NOOP, port=port, cameras={camera.name: {"key": f"video.{camera.name}"} for camera in CAMERAS},
        state=[{"key": "state.arm", "size": STATE}], actions={"split": {"arm": ACTION}},
    )  # fmt: skip


def _lerobot() -> dict[str, Any]:
    return _block(
        "lerobot", model=NOOP, cameras={camera.name: {"key": camera.name} for camera in CAMERAS},
        state=[{"key": joint, "size": 1} for joint in JOINTS],
    )  # fmt: skip


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
