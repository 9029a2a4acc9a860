"""The networks of a deployment's models in this process, for whoever runs them without the runtime."""

from __future__ import annotations

import functools

import torch

from benchmarks.served.deployment import RANDOM, SEED, WEIGHTS
from world_models.vjepa2.checkpoint import Networks, load_networks, random_networks
from world_models.vjepa2.config import preset


@functools.cache
def networks(size: str, dtype: torch.dtype = torch.float32) -> Networks:
    """Those of `benchmarks.served.deployment`, with the weights that the server has."""
    if size in RANDOM:
        return random_networks(RANDOM[size], SEED, dtype=dtype)
    return load_networks(preset("tabletop"), WEIGHTS, dtype=dtype)
