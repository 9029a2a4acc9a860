"""The clients under test talk to the toy edge of tests/server, control sessions to a scripted policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "server"), str(Path(__file__).parent)]

from toy_runtime import ToyRuntime, toy_runtime

from mstar_rt.client import Client, connect


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with toy_runtime() as running:
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[Client]:
    with connect(runtime.address) as connected:
        yield connected
