"""The edge that all tests of this folder talk to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from toy_runtime import ToyRuntime, toy_runtime

from mstar_rt.protos import runtime_pb2_grpc, world_model_pb2_grpc


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with toy_runtime() as running:
        yield running


@pytest.fixture
def channel(runtime: ToyRuntime) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(runtime.address, [("grpc.max_send_message_length", -1)]) as opened:
        yield opened


@pytest.fixture
def world_model(channel: grpc.Channel) -> Any:
    return world_model_pb2_grpc.WorldModelStub(channel)


@pytest.fixture
def runtime_stub(channel: grpc.Channel) -> Any:
    return runtime_pb2_grpc.RuntimeStub(channel)
