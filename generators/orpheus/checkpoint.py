"""Weights of a SNAC codec as published: `pytorch_model.bin` beside `config.json`, weight norms as parametrisations."""

from __future__ import annotations

from pathlib import Path

import torch

from generators.orpheus.snac_config import read_snac_config
from generators.orpheus.snac_net import SnacNet
from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Weights, load_strict, read_torch_weights

CONFIG_FILE, WEIGHTS_FILE = "config.json", "pytorch_model.bin"
UNUSED = ("encoder.",)
"""How the keys begin that only making codes from sound needs; of the quantizers, `in_proj` as well."""
NORM = ".parametrizations.weight.original"


def load_snac(folder: Path, device: str) -> SnacNet:
    """The decoder, in float32.

    Raises: ConfigError: no `config.json`, or a codec that is not served.
            CheckpointError: no weights, a key that is missing, unknown or of another shape.
    """
    config = read_snac_config(folder / CONFIG_FILE)
    path = folder / WEIGHTS_FILE
    with torch.device("meta"):
        net = SnacNet(config)
    weights = {key: tensor for key, tensor in read_torch_weights(path).items() if not _is_unused(key)}
    load_strict(net, with_norms_applied(weights, str(path)), where=str(path), device=device, dtype=torch.float32)
    return net.eval().requires_grad_(False).settle()


def with_norms_applied(weights: Weights, where: str) -> Weights:
    """Every pair `original0` (lengths) and `original1` (directions) as the one weight that it stands for.

    Raises: CheckpointError: one of a pair is missing, or they do not fit.
    """
    applied = {key: tensor for key, tensor in weights.items() if NORM not in key}
    names = dict.fromkeys(key.rpartition(NORM)[0] for key in weights if NORM in key)
    for name in names:
        lengths, directions = (weights.get(f"{name}{NORM}{part}") for part in (0, 1))
        if lengths is None or directions is None:
            missing = f"{name}{NORM}{0 if lengths is None else 1}"
            raise CheckpointError(f"{where} lacks {missing!r}; the weights must fit the configured model exactly")
        if lengths.shape != (len(directions), *[1] * (directions.dim() - 1)):
            raise CheckpointError(
                f"{where}: {name}{NORM}0 has shape {list(lengths.shape)}, which does not fit {NORM}1 of shape "
                f"{list(directions.shape)}"
            )
        applied[f"{name}.weight"] = torch._weight_norm(directions.float(), lengths.float(), 0)
    return applied


def _is_unused(key: str) -> bool:
    return key.startswith(UNUSED) or ".in_proj." in key
