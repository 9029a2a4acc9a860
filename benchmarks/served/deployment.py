"""The deployment that benchmarks measure: the shipped small model, and larger ones with random weights."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from mstar_rt.client import Client, connect
from mstar_rt.config import DeploymentConfig, load_deployment
from mstar_rt.launch import declare_models
from mstar_rt.model import ServedModel
from sim_bridge.server_process import served
from world_models.planning.options import PlannerDefaults
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config

WEIGHTS = Path(__file__).parents[2] / "world_models" / "vjepa2" / "weights" / "tabletop.safetensors"

# 66 tokens a frame: the size on which figures are asked for.
MIDDLE = VJepa2Config(
    name="middle",
    encoder=EncoderConfig(dim=256, depth=2, num_heads=4, mlp_dim=1024, image_size=128),
    predictor=PredictorConfig(
        latent_dim=256, dim=192, depth=4, num_heads=3, mlp_dim=768, grid_rows=8, grid_columns=8, max_frames=32
    ),
    planner=PlannerDefaults(num_samples=64),
)
# 258 tokens a frame, as the published model has.
WIDE = VJepa2Config(
    name="wide",
    encoder=EncoderConfig(dim=384, depth=2, num_heads=6, mlp_dim=1536, image_size=256),
    predictor=PredictorConfig(latent_dim=384, dim=384, depth=6, num_heads=6, mlp_dim=1536, max_frames=32),
    planner=PlannerDefaults(num_samples=16),
)
RANDOM = {config.name: config for config in (MIDDLE, WIDE)}
SEED = 0


def model_name(size: str, dtype: str) -> str:
    """The name under which a size is served by the worker of this dtype."""
    return size if dtype == "float32" else f"{size}-{dtype}"


@dataclasses.dataclass(frozen=True)
class Deployed:
    """A running server: its deployment file and its address."""

    file: Path
    address: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A served deployment, its client, and the same declarations for loading the models in this process."""

    client: Client
    config: DeploymentConfig
    models: dict[str, ServedModel]


@contextlib.contextmanager
def deployed(sizes: Sequence[str], dtypes: Sequence[str] = ("float32",)) -> Iterator[Deployed]:
    """Start a server with one worker of one thread per dtype, which serves every size."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "benchmark.yaml"
        file.write_text(yaml.safe_dump(_deployment(sizes, dtypes, Path(folder))))
        with served(file) as address:
            yield Deployed(file, address)


@contextlib.contextmanager
def target(server: Deployed) -> Iterator[Target]:
    """A client of that server, in any process of this machine."""
    config = load_deployment(server.file)
    with connect(server.address) as client:
        yield Target(client, config, declare_models(config))


@contextlib.contextmanager
def running() -> Iterator[Target]:
    """A server with models "small" and "middle" in float32."""
    with deployed(("small", "middle")) as server, target(server) as reached:
        yield reached


def _deployment(sizes: Sequence[str], dtypes: Sequence[str], folder: Path) -> dict[str, object]:
    models, placement = [], []
    for rank, dtype in enumerate(dtypes):
        for size in sizes:
            name = model_name(size, dtype)
            models.append({"name": name, "family": "vjepa2_ac", **_weights(size, folder)})
            placement.append({"model": name, "nodes": ["*"], "ranks": [rank]})
    workers = [{"rank": rank, "dtype": dtype, "kv_memory_mb": 1024} for rank, dtype in enumerate(dtypes)]
    return {"name": "benchmark", "workers": workers, "models": models, "placement": placement}


def _weights(size: str, folder: Path) -> dict[str, object]:
    if size not in RANDOM:
        return {"checkpoint": str(WEIGHTS)}
    dimensions = folder / f"{size}.json"
    RANDOM[size].to_json(dimensions)
    return {"options": {"config": str(dimensions), "random_seed": SEED}}
