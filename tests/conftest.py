"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# As workers have it (config.worker_environment): with torch's defaults the suite grows to 6 GB.
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

import pytest
from hypothesis import HealthCheck, settings

IS_SHARED = "PYTEST_XDIST_WORKER" in os.environ
DEPLOYMENTS = ("composite_serving", "serving")
"""Fixtures of tests/system that tests of several files use."""

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Two threads on a busy two-core machine are many times slower than one."""
    import torch

    torch.set_num_threads(1)


# First, as pytest-xdist looks at the groups in a hook of its own.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where processes share the suite (`make test`), they begin with the deployments, and each is started by one of them."""
    import torch

    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("system"):
            files.setdefault(item.path, []).append(item)
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    for path, tests in files.items():
        used = {fixture for test in tests for fixture in getattr(test, "fixturenames", ())}
        group = next((fixture for fixture in DEPLOYMENTS if fixture in used), path.stem)
        for test in tests:
            test.add_marker(pytest.mark.xdist_group(group))
    if IS_SHARED:
        items.sort(key=lambda item: not item.get_closest_marker("system"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Deployments are to answer in time, and the rest of the suite is not."""
    if IS_SHARED and not item.get_closest_marker("system") and not os.nice(0):
        os.nice(10)
