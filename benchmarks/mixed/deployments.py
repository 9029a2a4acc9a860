"""The shipped deployments, once for each order in which a worker may take its steps, all behind one server.

Workers that are not measured wait for messages. So the systems can take turns, and differ in nothing else.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sim_bridge.server_process import served

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = {1: CONFIGS / "mixed.yaml", 2: CONFIGS / "mixed_two_workers.yaml"}
"""By the number of workers."""

POLICY, PLANNER, PAINTER = "policy", "planner", "painter"
DEADLINE, FCFS, ROUND_ROBIN = "deadline", "fcfs", "round_robin"
SYSTEMS = (DEADLINE, FCFS, ROUND_ROBIN)
NO_ADMISSION = {"utilisation_bound": None}


@dataclass(frozen=True)
class Reached:
    """A running server. `ranks` of each system, and the bound of a step on all of them."""

    address: str
    ranks: Mapping[str, tuple[int, ...]]
    max_step_s: float


def model_name(model: str, system: str) -> str:
    return f"{model}-{system}"


@contextlib.contextmanager
def serving(
    num_workers: int,
    systems: Sequence[str] = SYSTEMS,
    admission: bool = True,
    painter: Mapping[str, Any] | None = None,
) -> Iterator[Reached]:
    """`painter`: a model of a deployment, which takes the place of the painter."""
    data = variants(FILES[num_workers], systems, painter)
    if not admission:
        data["admission"] = NO_ADMISSION
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mixed.yaml"
        file.write_text(yaml.safe_dump(data))
        with served(file) as address:
            ranks = {system: ranks_of(index, num_workers) for index, system in enumerate(systems)}
            yield Reached(address, ranks, data["workers"][0]["max_step_ms"] / 1e3)


def variants(file: Path, systems: Sequence[str], painter: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The deployment of `file` for each system: workers of their own, and models with the system in their names."""
    plain = yaml.safe_load(file.read_text())
    if painter is not None:
        others = [model for model in plain["models"] if model["name"] != PAINTER]
        plain["models"] = [*others, {**painter, "name": PAINTER}]
    for model in plain["models"]:
        if "checkpoint" in model:
            model["checkpoint"] = str((file.parent / model["checkpoint"]).resolve())
    data = {**plain, "workers": [], "models": [], "placement": []}
    for index, system in enumerate(systems):
        ranks = ranks_of(index, len(plain["workers"]))
        data["workers"] += [
            {**worker, "rank": ranks[worker["rank"]], "scheduling": system} for worker in plain["workers"]
        ]
        data["models"] += [{**model, "name": model_name(model["name"], system)} for model in plain["models"]]
        data["placement"] += [
            {**rule, "model": model_name(rule["model"], system), "ranks": [ranks[rank] for rank in rule["ranks"]]}
            for rule in plain["placement"]
        ]
    return data


def ranks_of(index: int, num_workers: int) -> tuple[int, ...]:
    return tuple(range(index * num_workers, (index + 1) * num_workers))
