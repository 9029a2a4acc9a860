"""The models that are measured: the shipped one, and a larger one with random weights in the published layout.

The larger one has a token for 8 x 8 pixels as the shipped one has, and 256 of them: its steps take long enough that
their arithmetic, and not the runtime, is what they cost.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from generators.bagel.autoencoder import Autoencoder
from generators.bagel.checkpoint import save_bagel
from generators.bagel.config import read_config
from generators.bagel.model import SHAPES, folder_of
from generators.bagel.network import MotNetwork
from generators.bagel.vision import Vision

SEED = 0
SHIPPED = SHAPES
SHIPPED_MODEL = {"name": SHIPPED, "family": "bagel", "options": {"checkpoint": SHAPES}}


@dataclass(frozen=True)
class Size:
    """`side` of its images, in pixels."""

    name: str
    side: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    mlp_dim: int


MIDDLE = Size("middle", 128, 256, 6, 8, 4, 768)


def shipped_folder() -> Path:
    return folder_of(SHIPPED, "", {"checkpoint": SHAPES})


def write_checkpoint(size: Size, folder: Path) -> None:
    """All that is published of a model into a new folder; words are those of the shipped one."""
    shipped = shipped_folder()
    folder.mkdir()
    for name in ("tokenizer.json", "vit_config.json", "config.json", "llm_config.json"):
        shutil.copyfile(shipped / name, folder / name)
    _change(
        folder / "llm_config.json", hidden_size=size.width, num_hidden_layers=size.depth,
        num_attention_heads=size.num_heads, num_key_value_heads=size.num_kv_heads,
        head_dim=size.width // size.num_heads, intermediate_size=size.mlp_dim,
    )  # fmt: skip
    values = json.loads((folder / "config.json").read_text())
    block = values["mstar_rt"]
    block["defaults"] = {**block.get("defaults", {}), "height": size.side, "width": size.side}
    block["max_latent_side"] = max(block["max_latent_side"], size.side // read_config(shipped).token_pixels)
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    config = read_config(folder)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network, vision, autoencoder = MotNetwork(config), Vision(config), Autoencoder(config.autoencoder)
    for table in (network.latent_pos_embed, vision.vit_pos_embed):
        table.fill()
    save_bagel(folder, config, network, vision, autoencoder, torch.float32)


def _change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=1))
