"""One deployment for all tests of this folder that do not end it: the golden model on two workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent))

from composite_serving import composite, composite_deployment, start_composite
from serving import GOLDEN, Serving, deployment, serving_of, write_deployment, write_dimensions

from mstar_rt.client import Client

Arrays = dict[str, np.ndarray]
APART = [
    {"ranks": [0]},
    {"nodes": ["prefill", "understand", "cond", "listen"], "ranks": [1]},
    {"nodes": ["decode", "uncond", "shrink"], "ranks": [2]},
]


@pytest.fixture(scope="session")
def dimensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dimensions(tmp_path_factory.mktemp("dimensions"))


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory, dimensions: Path) -> Iterator[Serving]:
    """`tiny` has memory for anything; `small`, the same weights on a worker of its own, has 56 pages; `cameras`, the same
    weights again, takes extrinsics."""
    data = deployment(dimensions)
    (tiny,) = data["models"]
    with_cameras = write_dimensions(dimensions.parent, use_extrinsics=True)
    data["models"].append({**tiny, "name": "small"})
    data["models"].append({**tiny, "name": "cameras", "options": {"config": str(with_cameras)}})
    data["workers"] = [{"rank": 0, "kv_memory_mb": 64}, {"rank": 1, "kv_memory_mb": 1}]
    data["placement"] = [
        {"model": "tiny", "ranks": [0]}, {"model": "small", "ranks": [1]}, {"model": "cameras", "ranks": [0]},
    ]  # fmt: skip
    with serving_of(write_deployment(tmp_path_factory.mktemp("serving"), data)) as running:
        yield running


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with serving.connect() as connected:
        yield connected


@pytest.fixture(scope="session")
def composite_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The composite model for tests that break things: `one` on rank 0, `apart` on ranks 0 to 2, `small` on 1 and 2,
    where a sequence of 128 tokens takes all the pages that there are."""
    models = [
        composite("one", [{"ranks": [0]}]),
        composite("apart", APART),
        composite("small", [{"ranks": [1]}, {"nodes": ["decode", "uncond"], "ranks": [2]}], cache_layers=64),
    ]
    data = composite_deployment(models, 3, worker={"max_step_s": 3.0, "silence_timeout_s": 3.0})
    data["server"] = {"port": 0, "max_unread_mb": 1}
    folder = tmp_path_factory.mktemp("composite")
    with open(folder / "log", "w+") as log:
        running = start_composite(folder, data, log=log)
        try:
            yield running.wait()
        finally:
            running.end()
        log.seek(0)
        assert running.process.returncode == 0, log.read()


@pytest.fixture
def composite_client(composite_serving: Serving) -> Iterator[Client]:
    with composite_serving.connect() as connected:
        yield connected


@pytest.fixture(scope="session")
def golden() -> Arrays:
    return load_file(GOLDEN / "vjepa2_ac_tiny.io.safetensors")


@pytest.fixture(scope="session")
def golden_cem() -> tuple[Arrays, dict[str, Any]]:
    return load_file(GOLDEN / "vjepa2_ac_cem.safetensors"), json.loads((GOLDEN / "vjepa2_ac_cem.json").read_text())


@pytest.fixture(scope="session")
def golden_poses() -> Arrays:
    return load_file(GOLDEN / "vjepa2_pose_update.safetensors")
