"""`mstar-rt serve` as a process of its own, and what tests ask of it: where it listens, who its workers are, what it holds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from benchmarks.soak.held import held_in
from benchmarks.soak.processes import ServerProcesses
from mstar_rt.client import Client, connect

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = GOLDEN / "vjepa2_ac_tiny.pt"
PLANNER = {"rollout_horizon": 2, "num_samples": 24, "num_elites": 6, "num_iterations": 2}
"""Small defaults: they are what the warm-up runs, and they fit the smallest memory that tests give."""

MAX_POLLS = 2000
"""Each poll is an answer of every process, so this many are far more than any release takes."""


def write_dimensions(folder: Path, use_extrinsics: bool = False) -> Path:
    """The model's own JSON for the golden weights, from the dimensions that came with them."""
    given = json.loads((GOLDEN / "vjepa2_ac_tiny.json").read_text())
    grid = given["img"] // given["patch"]
    encoder = {
        "dim": given["embed"], "depth": given["depth"], "num_heads": given["heads"], "mlp_dim": 4 * given["embed"],
        "image_size": given["img"], "patch_size": given["patch"],
    }  # fmt: skip
    predictor = {
        "latent_dim": given["embed"], "dim": given["pembed"], "depth": given["pdepth"], "num_heads": given["pheads"],
        "mlp_dim": 4 * given["pembed"], "grid_rows": grid, "grid_columns": grid, "max_frames": given["nframes"],
        "use_extrinsics": use_extrinsics,
    }  # fmt: skip
    path = folder / ("cameras.json" if use_extrinsics else "tiny.json")
    path.write_text(json.dumps({"name": "tiny", "encoder": encoder, "predictor": predictor, "planner": PLANNER}))
    return path


def deployment(dimensions: Path, **changes: Any) -> dict[str, Any]:
    """The golden model on one worker, as a deployment file has it."""
    model = {
        "name": "tiny", "family": "vjepa2_ac", "checkpoint": str(CHECKPOINT), "options": {"config": str(dimensions)},
    }  # fmt: skip
    return {"name": "system-test", "server": {"port": 0, "max_message_mb": 4}, "models": [model], **changes}


def write_deployment(folder: Path, data: Mapping[str, Any], name: str = "deployment") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(dict(data)))
    return path


def start_process(
    config: Path, environment: Mapping[str, str] | None = None, log: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell would start it. `log` takes its stderr and that of its workers."""
    return subprocess.Popen(
        [sys.executable, "-m", "mstar_rt.cli", "serve", str(config)],
        stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


class Serving:
    """A deployment that serves. Made by starting its process; `wait` returns once every model has warmed up.

    One that logs much needs a `log` file: a pipe that nobody reads would stop its workers once it is full.
    """

    def __init__(
        self, config: Path, environment: Mapping[str, str] | None = None, log: IO[str] | int = subprocess.PIPE
    ) -> None:
        self.process = start_process(config, environment, log)
        self.address = ""

    def wait(self) -> Serving:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " on 127.0.0.1:" in line, f"it did not start: {line}{self.end()}"
        self.address = line.split()[-1]
        return self

    def connect(self) -> Client:
        return connect(self.address)

    def worker_pids(self) -> dict[int, int]:
        """Process id by rank of the workers that live now."""
        return ServerProcesses(self.process.pid).workers()

    def num_arenas_of_the_dead(self) -> int:
        """Memory of tensors of workers that have ended, which others still map."""
        return ServerProcesses(self.process.pid).num_arenas_of_the_dead()

    def end(self, timeout_s: float = 20.0) -> str | None:
        """Stop it if it still runs; returns what it said on stderr, unless that went to a file."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=timeout_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.communicate()[1]


@contextlib.contextmanager
def serving_of(
    config: Path, environment: Mapping[str, str] | None = None, log_file: Path | None = None
) -> Iterator[Serving]:
    """A deployment from when it serves to its orderly end. What it says goes to `log_file`, if there is one."""
    with open(log_file, "w+") if log_file is not None else contextlib.nullcontext() as log:
        running = Serving(config, environment, subprocess.PIPE if log is None else log)
        try:
            yield running.wait()
        finally:
            said = running.end()
        if log is not None:
            log.seek(0)
            said = log.read()
        assert running.process.returncode == 0, said


def is_alive(pid: int) -> bool:
    """False for a zombie, too: it holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def held(client: Client) -> dict[str, float]:
    """Everything that a request could have left behind, by process and name; empty at idle."""
    return held_in(client.stats())


def assert_nothing_is_held(client: Client) -> None:
    """A release may still be on its way when the answer is there: ask until it has arrived, a bounded number of times."""
    for _ in range(MAX_POLLS):
        left = held(client)
        if not left:
            return
    raise AssertionError(f"still held: {left}")


def steps_total(client: Client, rank: int = 0) -> float:
    return client.stats().processes[f"worker/{rank}"]["steps_total"]
