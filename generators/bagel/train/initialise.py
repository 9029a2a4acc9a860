"""Weights before training."""

from __future__ import annotations

import math

import torch
from torch import nn

from generators.bagel.embedders import PositionTable, TimeEmbedder
from generators.bagel.network import Expert, MotNetwork
from generators.bagel.vision import Vision
from mstar_rt.nn.siglip import SiglipLayer

_TIME_GAIN = 4.0
"""Of the sines of a time between 0 and 1 few channels move."""


@torch.no_grad()
def initialise(network: MotNetwork, vision: Vision) -> None:
    """Products that keep the size of what they get, branches scaled down with depth, and a velocity of zero."""
    for module in (*network.modules(), *vision.modules()):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=1 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, PositionTable):
            module.fill()
    for module in network.modules():
        if isinstance(module, Expert):
            module.self_attn.o_proj.weight.mul_(_share(network.config.language.depth))
            module.mlp.down_proj.weight.mul_(_share(network.config.language.depth))
        elif isinstance(module, TimeEmbedder):
            first = module.mlp[0]
            assert isinstance(first, nn.Linear)
            first.weight.mul_(_TIME_GAIN)
    for module in vision.modules():
        if isinstance(module, SiglipLayer):
            module.self_attn.out_proj.weight.mul_(_share(vision.config.depth))
            module.mlp.fc2.weight.mul_(_share(vision.config.depth))
    network.llm2vae.weight.zero_()
    network.llm2vae.bias.zero_()


def _share(depth: int) -> float:
    return 1 / math.sqrt(2 * depth)
