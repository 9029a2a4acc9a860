"""The code of V-JEPA 2-AC's nodes, with the weights that they need. Latents are float32 between nodes, whatever the
weights are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mstar_rt.errors import CheckpointError, ConfigError
from mstar_rt.model import NodeResources, ServedModel
from world_models.planning.nodes import planning_nodes
from world_models.vjepa2.checkpoint import Networks, load_networks, random_networks
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.dimensions import config_for
from world_models.vjepa2.encoder_nodes import Encode, Observe, ObserveGoal
from world_models.vjepa2.history_nodes import Extend, Recall, Remember
from world_models.vjepa2.imagination_nodes import Predict, RolloutStart

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ENCODER_NODES: dict[str, Callable[[Any], Any]] = {"encode": Encode, "observe": Observe, "observe_goal": ObserveGoal}
PREDICTOR_NODES: dict[str, Callable[[Any], Any]] = {"remember": Remember, "predict": Predict}


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; load the weights if one of them has any.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    asked = resources.nodes or frozenset(node.name for node in model.graph.nodes)
    config = config_for(model.checkpoint, model.options)
    code: dict[str, Any] = {
        "recall": Recall(config.predictor),
        "extend": Extend(config.predictor),
        "rollout_start": RolloutStart(config.predictor),
        **planning_nodes(resources.device),
    }
    makers = {name: make for name, make in (ENCODER_NODES | PREDICTOR_NODES).items() if name in asked}
    if makers:
        networks = _networks(model, config, resources.device, DTYPES[resources.dtype])
        for name, make in makers.items():
            code[name] = make(networks.encoder if name in ENCODER_NODES else networks.predictor)
    return {name: node for name, node in code.items() if name in asked}


def _networks(model: ServedModel, config: VJepa2Config, device: str, dtype: torch.dtype) -> Networks:
    seed = model.options.get("random_seed")
    if seed is not None:
        return random_networks(config, seed, device=device, dtype=dtype)
    if not model.checkpoint:
        raise CheckpointError(f"model {model.name!r} has no checkpoint, name its weights file in the deployment")
    encoder_key = model.options.get("encoder_key", "encoder")
    return load_networks(config, Path(model.checkpoint), encoder_key=encoder_key, device=device, dtype=dtype)
