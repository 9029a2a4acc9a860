"""`mstar-rt serve` with something that a person can mend: exit code 2, one sentence on stderr, no traceback. Where the
sentence comes from one of three places, one of each is met as a process, the others by the calls that it makes."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import CHECKPOINT, deployment, start_process, write_deployment

from mstar_rt.config import load_deployment
from mstar_rt.errors import MstarError
from mstar_rt.launch import declare_models, place_models
from mstar_rt.worker.process import load_models

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

KEY = "predictor_blocks.1.attn.qkv.bias"


def weights_with(folder: Path, fault: str) -> Path:
    """The golden checkpoint with one fault in its predictor."""
    content = torch.load(CHECKPOINT, weights_only=True)
    predictor = content["predictor"]
    (key,) = (key for key in predictor if key.endswith(KEY))
    if fault == "a missing key":
        del predictor[key]
    elif fault == "an unknown key":
        predictor[f"{key}_2"] = predictor[key]
    else:
        predictor[key] = predictor[key][:-1]
    path = folder / f"{fault.replace(' ', '_')}.pt"
    torch.save(content, path)
    return path


def with_checkpoint(dimensions: Path, checkpoint: Path) -> dict[str, Any]:
    data = deployment(dimensions)
    data["models"][0]["checkpoint"] = str(checkpoint)
    return data


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def deployments(
    tmp_path_factory: pytest.TempPathFactory, dimensions: Path, taken_port: int
) -> dict[str, dict[str, Any]]:
    """By what is wrong."""
    folder = tmp_path_factory.mktemp("refusals")
    corrupt = folder / "corrupt.pt"
    corrupt.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 8)
    page = folder / "page.safetensors"
    page.write_text("<html>404: the file is not here</html>")
    return {
        "an unknown key in the file": deployment(dimensions, worker=[{"rank": 0}]),
        "an unknown key in a list": deployment(dimensions, workers=[{"rank": 0, "kv_memory": 64}]),
        "an unknown rank": deployment(dimensions, placement=[{"model": "tiny", "ranks": [3]}]),
        "an unknown family": deployment(dimensions, models=[{"name": "tiny", "family": "vjepa_ac"}]),
        "a port in use": deployment(dimensions, server={"port": taken_port}),
        "no such checkpoint": with_checkpoint(dimensions, folder / "nowhere.pt"),
        "a corrupt checkpoint": with_checkpoint(dimensions, corrupt),
        "a web page as checkpoint": with_checkpoint(dimensions, page),
        "too little memory": deployment(dimensions, workers=[{"rank": 0, "kv_memory_mb": 0}]),
    } | {
        fault: with_checkpoint(dimensions, weights_with(folder, fault))
        for fault in ("a missing key", "an unknown key", "a wrong shape")
    }  # fmt: skip


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory, deployments: dict[str, dict[str, Any]]
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All at once: they spend their time importing."""
    folder = tmp_path_factory.mktemp("processes")
    started = {
        name: start_process(write_deployment(folder, deployments[name], name.replace(" ", "_"))) for name in STARTED
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


STARTED = {
    "an unknown key in the file": r"unknown key 'worker', did you mean 'workers'\?",
    "a port in use": r"port \d+ of 127\.0\.0\.1 is in use: stop what listens there, or choose another port",
    "a missing key": rf"a_missing_key\.pt: predictor lacks '{re.escape(KEY)}'",
}
"""By the configuration, the server and a worker."""
LOADED = {
    "an unknown key in a list": r"workers\[0\]: unknown key 'kv_memory', did you mean 'kv_memory_mb'\?",
    "an unknown rank": r"rank 3\b",
    "an unknown family": r"unknown model family 'vjepa_ac', did you mean 'vjepa2_ac'\?",
    "too little memory": r"kv_memory_mb is 0, expected 1 to",
    "no such checkpoint": r"no weights file at .*/nowhere\.pt; check the path",
    "a corrupt checkpoint": r"corrupt\.pt .*(not a torch weights file|cannot be read)",
    "a web page as checkpoint": r"page\.safetensors is not a readable safetensors file",
    "an unknown key": rf"an_unknown_key\.pt: predictor has unknown keys '{re.escape(KEY)}_2'",
    "a wrong shape": rf"a_wrong_shape\.pt: predictor: '{re.escape(KEY)}' has shape \[191\], expected \[192\]",
}


@pytest.mark.parametrize("name", STARTED)
def test_what_can_be_mended_is_one_sentence(processes: dict[str, subprocess.Popen[str]], name: str) -> None:
    out, err = processes[name].communicate()
    assert processes[name].returncode == 2, err
    assert out == ""
    assert re.fullmatch(rf"mstar-rt: .*{STARTED[name]}.*\n", err), err


@pytest.mark.parametrize("name", LOADED)
def test_and_so_are_the_others(deployments: dict[str, dict[str, Any]], tmp_path: Path, name: str) -> None:
    file = write_deployment(tmp_path, deployments[name])
    with pytest.raises(MstarError) as refused:
        start_here(file)
    assert re.fullmatch(f".*{LOADED[name]}.*", str(refused.value))


def start_here(file: Path) -> None:
    """What the server does with a deployment file, and then its worker."""
    config = load_deployment(file)
    place_models(config, declare_models(config))
    load_models(config, config.workers[0], [model.name for model in config.models])
