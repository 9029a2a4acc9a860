"""Weights before training."""

from __future__ import annotations

import math

import torch
from torch import nn

from mstar_rt.nn.decoder import DecoderLayer
from mstar_rt.nn.rms_norm import AdaptiveRMSNorm
from mstar_rt.nn.siglip import SiglipLayer


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Products that keep the size of what they get, branches scaled down with depth, and conditioned branches closed:
    the dense layers of adaptive norms begin at zero, so that a gate opens as training asks for it."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            # The text's embeddings are multiplied by the root of their width.
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.embedding_dim))
    for module in network.modules():
        if isinstance(module, AdaptiveRMSNorm):
            nn.init.zeros_(module.dense.weight)
        elif isinstance(module, nn.ModuleList):
            _scale_branches(module)


def _scale_branches(layers: nn.ModuleList) -> None:
    scale = 1 / math.sqrt(2 * len(layers))
    for layer in layers:
        if isinstance(layer, DecoderLayer):
            layer.self_attn.o_proj.weight.mul_(scale)
            layer.mlp.down_proj.weight.mul_(scale)
        elif isinstance(layer, SiglipLayer):
            layer.self_attn.out_proj.weight.mul_(scale)
            layer.mlp.fc2.weight.mul_(scale)
