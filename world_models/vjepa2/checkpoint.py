"""Weights of the family: the published `.pt` files, and our safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import (
    Weights,
    load_strict,
    read_safetensors_sections,
    read_torch_sections,
    without_prefixes,
)
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.predictor import ActionPredictor

SECTIONS = ("encoder", "predictor")
PUBLISHED_PREFIXES = ("module.", "backbone.")
UNUSED_ENCODER_KEY = "pos_embed"
"""Some published files keep a table of learned positions that the rotary encoder does not have."""


class Networks(NamedTuple):
    encoder: Encoder
    predictor: ActionPredictor


def load_networks(
    config: VJepa2Config, path: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Networks:
    """Both networks with the weights at `path`, in evaluation mode, converted to `dtype`.

    A `.pt` holds dictionaries "encoder" and "predictor" (keys may start with `module.` and `backbone.`) beside training
    state, which is not read. A `.safetensors` holds `encoder.*` and `predictor.*`.
    Raises: CheckpointError: names the file and the keys that are missing, unknown or of another shape.
    """
    weights = _read(path)
    with torch.device("meta"):
        encoder, predictor = Encoder(config.encoder), ActionPredictor(config.predictor)
    loaded = Networks(
        load_strict(encoder, weights["encoder"], where=f"{path}: encoder", device=device, dtype=dtype),
        load_strict(predictor, weights["predictor"], where=f"{path}: predictor", device=device, dtype=dtype),
    )
    return _frozen(loaded)


def random_networks(
    config: VJepa2Config, seed: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Networks:
    """Untrained networks, for benchmarks of dimensions whose weights are not at hand."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = Networks(Encoder(config.encoder), ActionPredictor(config.predictor))
    return _frozen(Networks(networks.encoder.to(device, dtype), networks.predictor.to(device, dtype)))


def save_networks(encoder: nn.Module, predictor: nn.Module, path: Path, *, dtype: torch.dtype = torch.float16) -> None:
    """Write our safetensors layout."""
    tensors = {
        f"{section}.{key}": tensor.detach().to("cpu", dtype).contiguous()
        for section, network in zip(SECTIONS, (encoder, predictor), strict=True)
        for key, tensor in network.state_dict().items()
    }
    save_file(tensors, path)


def _frozen(networks: Networks) -> Networks:
    for network in networks:
        network.eval().requires_grad_(False)
    networks.encoder.patch_embed.freeze()
    return networks


def _read(path: Path) -> dict[str, Weights]:
    if path.suffix == ".safetensors":
        return read_safetensors_sections(path, SECTIONS)
    if path.suffix in {".pt", ".pth"}:
        found = read_torch_sections(path, SECTIONS)
        weights = {
            section: without_prefixes(found[section], PUBLISHED_PREFIXES, f"{path}: {section}") for section in SECTIONS
        }
        weights["encoder"].pop(UNUSED_ENCODER_KEY, None)
        return weights
    raise CheckpointError(f"{path} has an unknown kind of weights file {path.suffix!r}; expected .safetensors or .pt")
