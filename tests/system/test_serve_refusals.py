"""`mstar-rt serve` with something that a person can mend: exit code 2, one sentence on stderr, no traceback."""

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


def refused(data: dict[str, Any], folder: Path, name: str) -> subprocess.Popen[str]:
    return start_process(write_deployment(folder, data, name.replace(" ", "_")))


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
def processes(
    tmp_path_factory: pytest.TempPathFactory, dimensions: Path, taken_port: int
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All at once: they spend their time importing."""
    folder = tmp_path_factory.mktemp("refusals")
    corrupt = folder / "corrupt.pt"
    corrupt.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 8)
    page = folder / "page.safetensors"
    page.write_text("<html>404: the file is not here</html>")
    deployments = {
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
    started = {name: refused(data, folder, name) for name, data in deployments.items()}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("an unknown key in the file", r"unknown key 'worker', did you mean 'workers'\?"),
        ("an unknown key in a list", r"workers\[0\]: unknown key 'kv_memory', did you mean 'kv_memory_mb'\?"),
        ("an unknown rank", r"rank 3\b"),
        ("an unknown family", r"unknown model family 'vjepa_ac', did you mean 'vjepa2_ac'\?"),
        ("a port in use", r"port \d+ of 127\.0\.0\.1 is in use: stop what listens there, or choose another port"),
        ("too little memory", r"kv_memory_mb is 0, expected 1 to"),
        ("no such checkpoint", r"no weights file at .*/nowhere\.pt; check the path"),
        ("a corrupt checkpoint", r"corrupt\.pt .*(not a torch weights file|cannot be read)"),
        ("a web page as checkpoint", r"page\.safetensors is not a readable safetensors file"),
        ("a missing key", rf"a_missing_key\.pt: predictor lacks '{re.escape(KEY)}'"),
        ("an unknown key", rf"an_unknown_key\.pt: predictor has unknown keys '{re.escape(KEY)}_2'"),
        ("a wrong shape", rf"a_wrong_shape\.pt: predictor: '{re.escape(KEY)}' has shape \[191\], expected \[192\]"),
    ],
)
def test_what_can_be_mended_is_one_sentence(
    processes: dict[str, subprocess.Popen[str]], name: str, sentence: str
) -> None:
    out, err = processes[name].communicate()
    assert processes[name].returncode == 2, err
    assert out == ""
    assert re.fullmatch(rf"mstar-rt: .*{sentence}.*\n", err), err
