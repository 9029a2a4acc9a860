"""The composite model as a deployment, and its requests as one call each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from serving import Serving, write_deployment

from mstar_rt.client import Client, TaskSession

MODELS = str(Path(__file__).parents[1] / "models")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([MODELS, *filter(None, [os.environ.get("PYTHONPATH")])])}

Values = dict[tuple[str, tuple[int, ...]], np.ndarray]
"""Outputs of a request by name and iteration."""

Rules = Sequence[Mapping[str, Any]]


def composite(name: str, rules: Rules, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A model of a deployment file, and where it runs."""
    model = {"name": name, "family": "composite_model:declare", "options": options}
    return model, [{"model": name, **rule} for rule in rules]


def composite_deployment(
    models: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], num_ranks: int, **changes: Any
) -> dict[str, Any]:
    """`worker` among the changes holds for every rank."""
    worker = {"kv_memory_mb": 1, "shared_memory_mb": 64, "check_outputs": True, **changes.pop("worker", {})}
    return {
        "name": "composite-test",
        "server": {"port": 0, **changes.pop("server", {})},
        "models": [model for model, _ in models],
        "workers": [{"rank": rank, **worker} for rank in range(num_ranks)],
        "placement": [rule for _, rules in models for rule in rules],
        **changes,
    }


def start_composite(
    folder: Path,
    data: Mapping[str, Any],
    name: str = "composite",
    environment: Mapping[str, str] | None = None,
    log: IO[str] | int = subprocess.PIPE,
) -> Serving:
    """Not waited for."""
    return Serving(write_deployment(folder, data, name), {**ENVIRONMENT, **(environment or {})}, log)


def image(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)


def ask(client: Client, model: str, task: str, tensors: Mapping[str, np.ndarray], **options: Any) -> Values:
    """One request, all of it; an output that comes twice is a fault of the runtime."""
    stream = client.run(model, task, tensors, timeout_s=options.pop("timeout_s", 30.0), **options)
    values = gathered(stream)
    assert stream.done is not None
    return values


def ask_in(session: TaskSession, task: str, tensors: Mapping[str, np.ndarray], **options: Any) -> Values:
    return gathered(session.run(task, tensors, **options))


def gathered(outputs: Any) -> Values:
    values: Values = {}
    for output in outputs:
        key = (output.name, output.iteration)
        assert key not in values, f"{key} came twice"
        values[key] = output.value
    return values


def series(values: Values, name: str) -> list[np.ndarray]:
    """All values of one output in the order of iterations, which have no gaps."""
    keys = sorted(iteration for output, iteration in values if output == name)
    assert keys in ([()], [(index,) for index in range(len(keys))])
    return [values[name, key] for key in keys]


def assert_equal(got: Values, want: Values, tolerance: float = 0.0) -> None:
    """Whole numbers are equal whatever the tolerance."""
    assert got.keys() == want.keys()
    for key, wanted in want.items():
        assert got[key].dtype == wanted.dtype
        bound = tolerance if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(got[key], wanted, rtol=0, atol=bound, err_msg=str(key))
