"""openpi-client 0.1.2 against `mstar-rt serve` with the policy that ships; `make test-clients` runs it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "server" / "compat"), str(ROOT / "tests" / "models")]

from openpi_client import packed, unpacked  # ours: openpi's own one is in another environment

from mstar_rt.client import connect
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.server_process import served

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PYTHON = Path(os.environ.get("MSTAR_CLIENT_VENVS", Path(sys.prefix) / "clients")) / "openpi" / "bin" / "python"
CONFIG = ROOT / "configs" / "tabletop_clients.yaml"
EPISODES = [(task, seed) for task in ("push_left", "touch") for seed in range(5)]
EXECUTE = 5
SEED = 3
KEY = "0123456789abcdef"


class Bridge:
    """openpi's client in its own environment."""

    def __init__(self, port: int, *arguments: str) -> None:
        command = [str(PYTHON), str(Path(__file__).with_name("openpi_bridge.py")), "127.0.0.1", str(port), *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)

    def hear(self) -> Any:
        assert self.process.stdout is not None
        header = self.process.stdout.read(4)
        assert header, self.process.communicate()[1].decode()[-2000:]
        return unpacked(self.process.stdout.read(int.from_bytes(header, "big")))

    def infer(self, message: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        data = msgspec.msgpack.encode(packed(message))
        self.process.stdin.write(len(data).to_bytes(4, "big") + data)
        self.process.stdin.flush()
        return self.hear()

    def close(self) -> str:
        """What it has logged."""
        return self.process.communicate(timeout=20)[1].decode()


@contextmanager
def deployment(folder: Path, port: int, **changes: Any) -> Iterator[str]:
    """The shipped one with the openpi dialect alone."""
    data = yaml.safe_load(CONFIG.read_text())
    data["models"][0]["checkpoint"] = str(CONFIG.parent / data["models"][0]["checkpoint"])
    (block,) = (block for block in data["dialects"] if block["kind"] == "openpi")
    data["dialects"] = [block | {"port": port} | changes]
    data["admission"] = {"utilisation_bound": None}  # the world waits, so the machine may be slow
    file = folder / "clients.yaml"
    file.write_text(yaml.safe_dump(data))
    with served(file) as address:
        yield address


@pytest.fixture(scope="module")
def port() -> int:
    assert PYTHON.exists(), f"no environment with openpi-client at {PYTHON}: make test-clients makes it"
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number


def message_of(seen: dict[str, Any], instruction: str) -> dict[str, Any]:
    images = {"observation/image": seen["images"]["top"], "observation/wrist_image": seen["images"]["wrist"]}
    return {**images, "observation/state": np.asarray(seen["state"], np.float64), "prompt": instruction}


def results(chunk_for: Callable[[dict[str, Any], str], np.ndarray]) -> tuple[list[bool], list[np.ndarray]]:
    """Of all episodes in a world that stands still while a chunk is made: whether each was solved, and all chunks."""
    solved, chunks = [], []
    for task, seed in EPISODES:
        env = InstructionEnv(task)
        seen, _ = env.reset(seed=seed)
        over = False
        while not over:
            chunks.append(chunk_for(seen, env.instruction))
            for action in chunks[-1][:EXECUTE]:
                seen, _, is_solved, failed, _ = env.step(action)
                over = is_solved or failed
                if over:
                    break
        solved.append(bool(is_solved))
    return solved, chunks


def native_results(address: str) -> tuple[list[bool], list[np.ndarray]]:
    with (
        connect(address) as client,
        client.control("policy", instruction="-", control_hz=20, seed=SEED, budget_ms=60_000) as robot,
    ):

        def chunk_for(seen: dict[str, Any], instruction: str) -> np.ndarray:
            robot.set_instruction(instruction)
            return robot.wait_for_chunk(robot.send(**seen), 60).actions

        return results(chunk_for)


def test_it_does_exactly_what_the_native_client_does(port: int, tmp_path: Path) -> None:
    """With equal seeds: the same chunks, bit for bit, so the same episodes are solved."""
    with deployment(tmp_path, port, options={"seed": SEED, "budget_ms": 60_000}) as address:
        solved_natively, native_chunks = native_results(address)
        bridge = Bridge(port)
        assert bridge.hear()["action_dim"] == 2
        solved, chunks = results(lambda seen, instruction: bridge.infer(message_of(seen, instruction))["actions"])
        print(f"openpi {sum(solved)}, native {sum(solved_natively)} of {len(EPISODES)}, {len(chunks)} chunks")
        assert solved == solved_natively
        assert sum(solved) >= 0.8 * len(EPISODES)
        assert len(chunks) == len(native_chunks)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(native_chunks, chunks))
        refused = bridge.infer({"prompt": "touch the puck"})
        assert refused["raised"] == "RuntimeError"
        assert "3 differences: 'observation/image' is nothing" in refused["said"]
        assert "Traceback" not in refused["said"]
        assert bridge.infer({})["raised"].startswith("ConnectionClosed")
        bridge.close()


def test_its_api_key_is_checked(port: int, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(KEY)
    with deployment(tmp_path, port, api_keys_file=str(keys)):
        assert "HTTP 401" in Bridge(port, KEY[::-1]).close()
        right = Bridge(port, KEY)
        seen, _ = InstructionEnv("touch").reset(seed=1)
        right.hear()
        assert right.infer(message_of(seen, "touch the puck"))["actions"].shape == (16, 2)
        right.close()
