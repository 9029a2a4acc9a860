"""The code of the nodes of pi0.5 and pi0, with the weights that they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mstar_rt.errors import CheckpointError, ConfigError
from mstar_rt.model import NodeResources, ServedModel
from mstar_rt.nn.flow import euler_times
from policies.anytime.pace import Pace
from policies.anytime.step_times import StepTimes
from policies.pi05.checkpoint import load_network, random_network
from policies.pi05.compiled_velocity import CompiledVelocity, plain_velocity
from policies.pi05.context_nodes import Prefill, RememberState, See
from policies.pi05.flow_nodes import Denoise, Finish, Start
from policies.pi05.model import settings_of
from policies.pi05.network import Pi05Network
from policies.pi05.prepare_node import Prepare
from policies.pi05.processor import processors_for
from policies.pi05.settings import PolicySettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NETWORK_NODES: dict[str, Callable[[Pi05Network], Any]] = {
    "see": See, "prefill": Prefill, "remember_state": RememberState,
}  # fmt: skip


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; load weights, statistics and tokenizer if one of them reads them.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    settings = settings_of(model)
    asked = (resources.nodes or frozenset(node.name for node in model.graph.nodes)) & {
        node.name for node in model.graph.nodes
    }
    step_times = StepTimes()
    code: dict[str, Any] = {"pace": Pace(euler_times, step_times)}
    if asked & {"prepare", "start", "finish"}:
        processors = processors_for(settings, resources.device)
        code |= {
            "prepare": Prepare(settings, processors) if "prepare" in asked else None,
            "start": Start(settings, processors, resources.device),
            "finish": Finish(processors),
        }
    makers = {name: make for name, make in NETWORK_NODES.items() if name in asked}
    if makers or "denoise" in asked:
        network = _network(model, settings, resources.device, DTYPES[resources.dtype])
        code |= {name: make(network) for name, make in makers.items()}
    if "denoise" in asked:
        compiles = resources.compile
        velocity = CompiledVelocity(network, resources.device) if compiles else plain_velocity(network)
        code["denoise"] = Denoise(network, velocity, step_times)
    return {name: node for name, node in code.items() if name in asked}


def _network(model: ServedModel, settings: PolicySettings, device: str, dtype: torch.dtype) -> Pi05Network:
    seed = model.options.get("random_seed")
    if seed is not None:
        return random_network(settings.network, seed, device=device, dtype=dtype)
    if not model.checkpoint:
        raise CheckpointError(f"model {model.name!r} has no checkpoint, name its weights file in the deployment")
    return load_network(settings.network, Path(model.checkpoint), device=device, dtype=dtype)
