"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
# As workers have it (config.worker_environment): with torch's defaults the suite grows to 6 GB.
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Two threads on a busy two-core machine are many times slower than one."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
