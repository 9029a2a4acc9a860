"""What is soaked: the shipped world model on one rank and spread over two, and a model that does nothing on two."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.served.deployment import WEIGHTS
from sim_bridge.server_process import served

WHOLE, SPREAD, NOOP = "whole", "spread", "noop"


@contextlib.contextmanager
def soaked_server() -> Iterator[str]:
    """host:port of a server with little cache memory, so that requests have to wait for pages."""
    data = {
        "name": "soak",
        "workers": [{"rank": rank, "kv_memory_mb": 24, "check_outputs": True} for rank in (0, 1)],
        "models": [
            {"name": WHOLE, "family": "vjepa2_ac", "checkpoint": str(WEIGHTS)},
            {"name": SPREAD, "family": "vjepa2_ac", "checkpoint": str(WEIGHTS)},
            {"name": NOOP, "family": "benchmarks.noop.model:declare"},
        ],
        "placement": [
            {"model": SPREAD, "nodes": ["encode", "observe", "observe_goal", "remember"], "ranks": [1]},
            {"model": NOOP, "nodes": ["right", "take"], "ranks": [1]},
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "soak.yaml"
        file.write_text(yaml.safe_dump(data))
        with served(file) as address:
            yield address
