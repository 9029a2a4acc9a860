"""The robot loop that docs/robots.md prints drives a robot, and its table has every parameter."""

from __future__ import annotations

import inspect
import re
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_policy_server import FakePolicyServer, fake_policy_server, picture, rows

from mstar_rt.client import Client
from mstar_rt.protos import control_pb2

PAGE = (Path(__file__).parents[2] / "docs" / "robots.md").read_text()
NUM_TICKS = 6


class Robot:
    made: Robot

    def __init__(self) -> None:
        self.moved: list[list[float]] = []
        Robot.made = self

    def images(self) -> dict[str, np.ndarray]:
        return {"top": picture(), "wrist": picture()}

    def state(self) -> list[float]:
        return [0.0, 0.0, 0.0]

    def move(self, action: np.ndarray) -> None:
        self.moved.append(action.tolist())

    def stop(self) -> None:
        raise AssertionError("nothing went wrong")

    def is_done(self) -> bool:
        return len(self.moved) >= NUM_TICKS


@pytest.fixture
def server() -> Iterator[FakePolicyServer]:
    with fake_policy_server() as running:
        yield running


def test_the_loop_of_the_page_drives_a_robot(
    server: FakePolicyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "my_robot" in block)
    assert len(code.splitlines()) <= 40
    module = types.ModuleType("my_robot")
    module.Robot = Robot  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_robot", module)
    policy = threading.Thread(target=play_policy, args=(server,), daemon=True)
    policy.start()
    exec(code.replace("127.0.0.1:50051", server.address).replace('"policy"', '"toy"'), {})
    assert Robot.made.moved == rows(0, NUM_TICKS).tolist()
    assert capsys.readouterr().out.startswith(f"{NUM_TICKS} ")


def play_policy(server: FakePolicyServer) -> None:
    """Row i of every chunk is i ticks after its observation."""
    stream, tick_of = server.stream(), {0: 0}
    while (message := stream.incoming.get()) is not None:
        if message.WhichOneof("message") == "observation":
            observation = message.observation
            tick = tick_of[observation.executed_chunk_seq] + observation.executed_index + 1
            tick_of[observation.seq] = tick
            stream.answer(observation, rows(tick))


def test_the_page_has_every_parameter() -> None:
    table = PAGE.split("### What `control` takes")[1].split("###")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    taken = set(inspect.signature(Client.control).parameters) - {"self", "model", "model_options"}
    assert told == taken


def test_the_page_has_every_event() -> None:
    table = PAGE.split("`session.events` is")[1].split("###")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    of_the_server = {name.removeprefix("KIND_").lower() for name in control_pb2.ControlEvent.Kind.keys()[1:]}
    assert told == of_the_server | {
        "connected",
        "connection_lost",
        "overwritten",
        "refused",
        "flagged",
        "recording_ended",
    }
