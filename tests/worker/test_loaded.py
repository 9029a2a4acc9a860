"""What cannot be loaded on this machine is said in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import toy_model

from mstar_rt.config import WorkerConfig
from mstar_rt.errors import ConfigError
from mstar_rt.worker.loaded import load_model


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_is_not_there_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"rank 2 has device '{device}', but torch finds no CUDA device"):
        load_model(toy_model.declare("toy", "", {}), WorkerConfig(2, device=device))
