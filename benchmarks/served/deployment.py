"""The deployment that benchmarks measure: the shipped small model and a middle-sized one with random weights."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from mstar_rt.client import Client, connect
from mstar_rt.config import DeploymentConfig, parse_deployment
from mstar_rt.launch import declare_models
from mstar_rt.model import ServedModel
from sim_bridge.server_process import served
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config

WEIGHTS = Path(__file__).parents[2] / "world_models" / "vjepa2" / "weights" / "tabletop.safetensors"

# 66 tokens a frame: the middle size on which figures are asked for.
MIDDLE = VJepa2Config(
    name="middle",
    encoder=EncoderConfig(dim=256, depth=2, num_heads=4, mlp_dim=1024, image_size=128),
    predictor=PredictorConfig(
        latent_dim=256, dim=192, depth=4, num_heads=3, mlp_dim=768, grid_rows=8, grid_columns=8, max_frames=32
    ),
)


@dataclasses.dataclass(frozen=True)
class Target:
    """A served deployment, its client, and the same declarations for loading the models in this process."""

    client: Client
    config: DeploymentConfig
    models: dict[str, ServedModel]


@contextlib.contextmanager
def running(dtype: str = "float32") -> Iterator[Target]:
    """Start a server with models "small" and "middle" on one worker with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        middle = Path(folder) / "middle.json"
        MIDDLE.to_json(middle)
        data = {
            "name": "benchmark",
            "workers": [{"rank": 0, "dtype": dtype, "kv_memory_mb": 1024}],
            "models": [
                {"name": "small", "family": "vjepa2_ac", "checkpoint": str(WEIGHTS)},
                {"name": "middle", "family": "vjepa2_ac", "options": {"config": str(middle), "random_seed": 0}},
            ],
        }
        file = Path(folder) / "benchmark.yaml"
        file.write_text(yaml.safe_dump(data))
        config = parse_deployment(data)
        with served(file) as address, connect(address) as client:
            yield Target(client, config, declare_models(config))
