"""LeRobot 0.4.4's own RobotClient against `mstar-rt serve` with the policy that ships; `make test-clients` runs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from relay import Relay

from mstar_rt.client import connect
from sim_bridge.policy_fleet import PolicySetting, run_setting
from sim_bridge.server_process import served

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MSTAR_CLIENT_VENVS", Path(sys.prefix) / "clients")) / "lerobot" / "bin" / "python"
TASKS = ("push_left", "touch")
SEEDS = range(10)
LATE = "the observation's chunk could not be made within its budget"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the deployment that ships, with LeRobot's dialect alone: the others have ports of their own."""
    assert PYTHON.exists(), f"no environment with lerobot at {PYTHON}: make test-clients makes it"
    deployment = yaml.safe_load((ROOT / "configs" / "tabletop_clients.yaml").read_text())
    deployment["dialects"] = [each for each in deployment["dialects"] if each["kind"] == "lerobot"]
    deployment["admission"] = {"utilisation_bound": None}  # a busy machine is late, but is taken
    for model in deployment["models"]:
        model["checkpoint"] = str(ROOT / "configs" / model["checkpoint"])
    config = tmp_path_factory.mktemp("deployment") / "tabletop_lerobot.yaml"
    config.write_text(yaml.safe_dump(deployment))
    with served(config) as address:
        yield address


def episodes(address: str, *arguments: str) -> list[dict[str, Any]]:
    command = [str(PYTHON), str(Path(__file__).with_name("lerobot_episodes.py")), address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_it_reaches_the_success_rate_of_the_native_client(address: str) -> None:
    """The same scenes in real time. Of 20 episodes one more or less may fail by chance, and three once in a hundred runs."""
    with connect(address) as client:
        horizon = client.describe("policy").policy.action_horizon
    tasks = [argument for task in TASKS for argument in ("--task", task)]
    foreign = episodes(address, "--actions-per-chunk", str(horizon), *tasks, "--seeds", *map(str, SEEDS))
    native = asyncio.run(
        run_setting(address, PolicySetting(None, 0.0, 5, 1), [(task, seed) for task in TASKS for seed in SEEDS])
    )
    solved, solved_natively = sum(each["success"] for each in foreign), sum(each.success for each in native.episodes)
    print(f"LeRobot {solved}, native {solved_natively} of {len(foreign)}", *map(json.dumps, foreign), sep="\n")
    assert len(foreign) == len(native.episodes)
    assert solved >= solved_natively - 3
    errors = [error for each in foreign for error in each["errors"]]
    assert not [error for error in errors if LATE not in error]  # a busy machine is late now and then
    # Alone on a machine it waits for its first chunk only: one tick an episode.
    num_empty, num_actions = (sum(each[key] for each in foreign) for key in ("num_empty_ticks", "num_actions"))
    assert num_empty < 0.3 * num_actions, (num_empty, num_actions)


def test_it_goes_on_when_its_connection_was_cut(address: str) -> None:
    """RobotClient connects anew, but does not say anew what it wants."""
    relay = Relay(address, cut_after_bytes=400_000)  # about 16 observations
    try:
        (episode,) = episodes(relay.address, "--actions-per-chunk", "16", "--task", "push_left", "--seeds", "9")
    finally:
        relay.close()
    print(json.dumps(episode | {"errors": len(episode["errors"])}))
    assert relay.num_cut == 1
    assert episode["success"]


def test_a_client_that_does_not_fit_is_told_so(address: str) -> None:
    with pytest.raises(AssertionError, match="actions_per_chunk is 100"):
        episodes(address, "--actions-per-chunk", "100", "--task", "touch", "--seeds", "0")
