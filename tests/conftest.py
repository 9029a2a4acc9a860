"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
# As workers have it (config.worker_environment): with torch's defaults the suite grows to 6 GB.
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

import pytest
from hypothesis import HealthCheck, settings

IS_SHARED = "PYTEST_XDIST_WORKER" in os.environ

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Two threads on a busy two-core machine are many times slower than one."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where two processes share the suite (`make test`), one of them runs all deployments, one after the other, and
    begins with them: several at once would need more than two cores."""
    import torch

    for item in items:
        if item.get_closest_marker("system"):
            item.add_marker(pytest.mark.xdist_group("system"))
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if IS_SHARED:
        items.sort(key=lambda item: not item.get_closest_marker("system"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Deployments are to answer in time, and the rest of the suite is not."""
    if IS_SHARED and not item.get_closest_marker("system") and not os.nice(0):
        os.nice(10)
