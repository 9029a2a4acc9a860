"""Control sessions: what the path costs beside a bare echo, the shipped policy beside a plain loop, smooth motion."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.served.deployment import Deployed
from benchmarks.served.worker_process import run_like_a_worker
from sim_bridge.server_process import served

NOOP, POLICY, COMPILED_POLICY = "noop", "policy", "compiled_policy"
WEIGHTS = Path(__file__).parents[2] / "policies" / "pi05" / "weights" / "tabletop_policy.safetensors"


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    with policies_served() as server:
        return run_like_a_worker("benchmarks.control.measure", server, args)


@contextlib.contextmanager
def policies_served() -> Iterator[Deployed]:
    """A server with the policy that does nothing and, eager and compiled, the one that ships, each on a worker of one
    thread. No robot is refused for load: overload is measured.
    """
    data = {
        "name": "control",
        "workers": [
            {"rank": rank, "threads": 1, "max_batch": 16, "kv_memory_mb": 64, "shared_memory_mb": 256}
            | ({"compile": True} if rank == 2 else {})
            for rank in range(3)
        ],
        "models": [
            {"name": NOOP, "family": "benchmarks.noop.policy:declare"},
            {"name": POLICY, "family": "pi05", "checkpoint": str(WEIGHTS)},
            {"name": COMPILED_POLICY, "family": "pi05", "checkpoint": str(WEIGHTS)},
        ],
        "placement": [
            {"model": NOOP, "nodes": ["*"], "ranks": [0]},
            {"model": POLICY, "nodes": ["*"], "ranks": [1]},
            {"model": COMPILED_POLICY, "nodes": ["*"], "ranks": [2]},
        ],
        "admission": {"utilisation_bound": None},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "control.yaml"
        file.write_text(yaml.safe_dump(data))
        with served(file) as address:
            yield Deployed(file, address)
