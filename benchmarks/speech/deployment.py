"""The models that are measured, all on one worker of one thread."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.served.deployment import Deployed
from benchmarks.speech.cases import SMOLLM2, STREAMS, TALKER, cases, text_cases
from benchmarks.speech.checkpoints import SIZES, write_checkpoint
from benchmarks.speech.llamas import write_talker
from generators.llama.model import folder_of
from mstar_rt.config import DeploymentConfig
from sim_bridge.server_process import served


@contextlib.contextmanager
def deployed(quick: bool) -> Iterator[Deployed]:
    """Write the checkpoints and start a server of what the cases name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "speech.yaml"
        file.write_text(yaml.safe_dump(describe(folder, quick)))
        with served(file) as address:
            yield Deployed(file, address)


def checkpoint_of(config: DeploymentConfig, model: str) -> Path:
    """The folder of a model's checkpoint in the published layout."""
    given = next(each for each in config.models if each.name == model)
    return folder_of(model, given.checkpoint or "", given.options)


def describe(folder: Path, quick: bool) -> dict[str, Any]:
    """The deployment, whose checkpoints are written to `folder`."""
    models = [*_speaking(folder, quick), *_writing(folder, quick)]
    worker = {"rank": 0, "dtype": "float32", "threads": 1, "max_batch": max(STREAMS), "kv_memory_mb": 1024}
    return {
        "name": "speech-benchmark",
        "workers": [worker],
        "models": models,
        "placement": [{"model": model["name"], "nodes": ["*"], "ranks": [0]} for model in models],
    }


def _speaking(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    for size in dict.fromkeys(case.size for case in cases(quick)):
        write_checkpoint(SIZES[size], folder / size)
        yield {"name": size, "family": "orpheus", "checkpoint": str(folder / size)}


def _writing(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    for model in (case.model for case in text_cases(quick)):
        if model == TALKER:
            write_talker(folder / model)
            yield {"name": model, "family": "llama", "checkpoint": str(folder / model)}
        else:
            assert model == SMOLLM2
            yield {"name": model, "family": "llama", "options": {"checkpoint": "smollm2"}}
