"""The deployment that is measured. Workers that nobody asks for anything wait for messages."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.images.cases import BATCHES, placings
from benchmarks.images.checkpoints import MIDDLE, SHIPPED, shipped_folder, write_checkpoint
from benchmarks.served.deployment import Deployed
from mstar_rt.config import DeploymentConfig
from sim_bridge.server_process import served


@contextlib.contextmanager
def deployed(quick: bool) -> Iterator[Deployed]:
    """Write the checkpoints and start a server."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "images.yaml"
        file.write_text(yaml.safe_dump(describe(Path(name), quick)))
        with served(file) as address:
            yield Deployed(file, address)


def checkpoint_of(config: DeploymentConfig, model: str) -> Path:
    """The folder of a model's checkpoint in the published layout."""
    return Path(next(each for each in config.models if each.name == model).checkpoint or "")


def describe(folder: Path, quick: bool) -> dict[str, Any]:
    """The deployment, whose checkpoints are written to `folder`."""
    checkpoints = {SHIPPED: shipped_folder(), MIDDLE.name: folder / MIDDLE.name}
    if not quick:
        write_checkpoint(MIDDLE, checkpoints[MIDDLE.name])
    workers: list[dict[str, Any]] = []
    models, placement = [], []
    for placing in placings(quick):
        rank = len(workers)
        workers += [
            {
                "rank": rank + index, "dtype": "float32", "threads": placing.threads, "max_batch": 4 * max(BATCHES),
                "kv_memory_mb": 256,
            }
            for index in range(placing.num_workers)
        ]  # fmt: skip
        models.append({"name": placing.name, "family": "bagel", "checkpoint": str(checkpoints[placing.model])})
        placement.append({"model": placing.name, "nodes": ["*"], "ranks": [rank]})
        if placing.apart:
            placement.append({"model": placing.name, "nodes": ["flow_without_text"], "ranks": [rank + 1]})
    return {"name": "images-benchmark", "workers": workers, "models": models, "placement": placement}
