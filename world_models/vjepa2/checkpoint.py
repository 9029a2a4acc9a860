"""Weights of the family: the published `.pt` files, and our safetensors."""

from __future__ import annotations

from collections.abc import Sequence
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
from mstar_rt.nn.linear import pack
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.dimensions import SECTIONS, is_torch_file
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.predictor import ActionPredictor

PUBLISHED_PREFIXES = ("module.", "backbone.", "_orig_mod.")
"""Left by distributed training, by the wrapper of several clips, and by torch.compile."""
UNUSED_KEYS = (("encoder", "pos_embed"),)
"""Some published files keep a table of learned positions that the rotary encoder does not have."""


class Networks(NamedTuple):
    encoder: Encoder
    predictor: ActionPredictor


def load_networks(
    config: VJepa2Config,
    path: Path,
    *,
    encoder_key: str = "encoder",
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Networks:
    """Both networks with the weights at `path`, in evaluation mode, converted to `dtype`.

    A `.pt` holds dictionaries `encoder_key` and "predictor" (keys may start with `module.` and `backbone.`) beside
    training state, which is not read. A `.safetensors`, whole or in shards, holds `encoder.*` and `predictor.*`.
    Raises: CheckpointError: names the file and the keys that are missing, unknown or of another shape.
    """
    weights = _read(path, encoder_key)
    with torch.device("meta"):
        encoder, predictor = Encoder(config.encoder), ActionPredictor(config.predictor)
    loaded = Networks(
        load_strict(encoder, weights["encoder"], where=f"{path}: encoder", device=device, dtype=dtype),
        load_strict(predictor, weights["predictor"], where=f"{path}: predictor", device=device, dtype=dtype),
    )
    freeze(*loaded)
    return loaded


def random_networks(
    config: VJepa2Config, seed: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Networks:
    """Untrained networks, for benchmarks of dimensions whose weights are not at hand."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = Networks(Encoder(config.encoder), ActionPredictor(config.predictor))
    networks = Networks(networks.encoder.to(device, dtype), networks.predictor.to(device, dtype))
    freeze(*networks)
    return networks


def save_networks(encoder: nn.Module, predictor: nn.Module, path: Path, *, dtype: torch.dtype = torch.float16) -> None:
    """Write our safetensors layout."""
    tensors = {
        f"{section}.{key}": tensor.detach().to("cpu", dtype).contiguous()
        for section, network in zip(SECTIONS, (encoder, predictor), strict=True)
        for key, tensor in network.state_dict().items()
    }
    save_file(tensors, path)


def read_published(
    path: Path, encoder_key: str = "encoder", unused: Sequence[tuple[str, str]] = UNUSED_KEYS
) -> dict[str, Weights]:
    """The "encoder" and the "predictor" of a published `.pt`, memory-mapped, without what wrappers put before keys.

    Args: encoder_key: the dictionary that holds the encoder. unused: (section, key) of tensors that no network has.
    """
    found = read_torch_sections(path, (encoder_key, "predictor"))
    weights = {
        section: without_prefixes(found[key], PUBLISHED_PREFIXES, f"{path}: {key}")
        for section, key in zip(SECTIONS, (encoder_key, "predictor"), strict=True)
    }
    for section, key in unused:
        weights[section].pop(key, None)
    return weights


def freeze(encoder: Encoder, *others: nn.Module) -> None:
    """Evaluation mode, no gradients, and what the networks derive from their weights."""
    for network in (encoder, *others):
        network.eval().requires_grad_(False)
        pack(network)
    encoder.patch_embed.freeze()


def _read(path: Path, encoder_key: str) -> dict[str, Weights]:
    if is_torch_file(path):
        return read_published(path, encoder_key)
    if path.is_dir() or path.suffix in {".safetensors", ".json"}:
        return read_safetensors_sections(path, SECTIONS)
    raise CheckpointError(f"{path} has an unknown kind of weights file {path.suffix!r}; expected .safetensors or .pt")
