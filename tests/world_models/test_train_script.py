"""The training script from end to end, at a size that teaches nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from world_models.vjepa2.checkpoint import load_networks
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.train.__main__ import main


def test_script_writes_weights_dimensions_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["--num-episodes", "8", "--encoder-steps", "1", "--predictor-steps", "2", "--num-tasks", "1"]
    monkeypatch.setattr(sys, "argv", ["train", "--seed", "1", "--out", str(tmp_path), *sizes])
    main()
    weights = tmp_path / "tabletop.safetensors"
    load_networks(VJepa2Config.from_json(weights.with_suffix(".json")), weights)
    assert weights.stat().st_size < 10e6
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"imagination_1", "imagination_3", "imagination_5", "reach", "push"} <= summary.keys()
