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

from serving import GOLDEN, Serving, deployment, write_deployment, write_dimensions

from mstar_rt.client import Client

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def dimensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dimensions(tmp_path_factory.mktemp("dimensions"))


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory, dimensions: Path) -> Iterator[Serving]:
    """`tiny` has memory for anything; `small`, the same weights on a worker of its own, has 56 pages."""
    data = deployment(dimensions)
    data["models"].append({**data["models"][0], "name": "small"})
    data["workers"] = [{"rank": 0, "kv_memory_mb": 64}, {"rank": 1, "kv_memory_mb": 1}]
    data["placement"] = [{"model": "tiny", "ranks": [0]}, {"model": "small", "ranks": [1]}]
    running = Serving(write_deployment(tmp_path_factory.mktemp("serving"), data))
    try:
        yield running.wait()
    finally:
        said = running.end()
    assert running.process.returncode == 0, said


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with serving.connect() as connected:
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
