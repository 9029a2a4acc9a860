"""Golden data, and a driver of the tiny model's walks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import walk_driver
from walk_driver import Request, WalkDriver

from world_models.vjepa2.checkpoint import Networks, load_networks
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config
from world_models.vjepa2.model import declare

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = VJepa2Config(
    "tiny",
    EncoderConfig(dim=64, depth=2, num_heads=2, mlp_dim=256, image_size=64),
    PredictorConfig(latent_dim=64, dim=64, depth=2, num_heads=2, mlp_dim=256, grid_rows=4, grid_columns=4),
)


@pytest.fixture(scope="session")
def tiny_config() -> VJepa2Config:
    return TINY


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    return GOLDEN / "vjepa2_ac_tiny.pt"


@pytest.fixture(scope="session")
def tiny(tiny_checkpoint: Path) -> Networks:
    return load_networks(TINY, tiny_checkpoint)


@pytest.fixture(scope="session")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_ac_tiny.io.safetensors")


@pytest.fixture(scope="session")
def golden_cem() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    settings = json.loads((GOLDEN / "vjepa2_ac_cem.json").read_text())
    return load_file(GOLDEN / "vjepa2_ac_cem.safetensors"), settings


@pytest.fixture(scope="session")
def golden_poses() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_pose_update.safetensors")


@pytest.fixture(scope="session")
def tiny_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("tiny") / "tiny.json"
    TINY.to_json(path)
    return {"config": str(path)}


def drive(options: Mapping[str, Any], checkpoint: Path | str, dtype: str = "float32") -> WalkDriver:
    return walk_driver.drive(declare("tiny", str(checkpoint), options), dtype)


@pytest.fixture
def driver(tiny_options: dict[str, str], tiny_checkpoint: Path) -> WalkDriver:
    return drive(tiny_options, tiny_checkpoint)


@pytest.fixture(scope="session")
def make_request() -> type[Request]:
    return Request


@pytest.fixture(scope="session")
def make_driver() -> Any:
    return drive
