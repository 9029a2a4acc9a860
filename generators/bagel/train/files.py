"""The files of the small model: the published layout and a tokenizer, as a deployment reads them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from generators.bagel import network as mot
from generators.bagel import vision as siglip
from generators.bagel.autoencoder import Autoencoder
from generators.bagel.checkpoint import WEIGHTS_FILE, load_autoencoder, save_bagel
from generators.bagel.config import AutoencoderConfig, BagelConfig, read_config
from generators.bagel.train.dimensions import THINK_PROMPT
from generators.bagel.train.flow_training import BothNetworks
from generators.bagel.train.lessons import all_texts
from generators.bagel.train.vocabulary import Vocabulary, write_tokenizer
from mstar_rt.nn.checkpoint import load_strict
from sim_bridge.shapes import COLOURS, PLACES, RADII, SHAPES

TOKENIZER = "tokenizer.json"


class Shapes(NamedTuple):
    config: BagelConfig
    both: BothNetworks
    autoencoder: Autoencoder
    vocabulary: Vocabulary


def write_vocabulary(folder: Path) -> Vocabulary:
    write_tokenizer(folder / TOKENIZER, [*COLOURS, *SHAPES, *PLACES, *RADII, *all_texts(), THINK_PROMPT])
    return Vocabulary(folder / TOKENIZER)


def save_shapes(folder: Path, config: BagelConfig, both: BothNetworks, autoencoder: Autoencoder) -> None:
    """In float16, which halves the file and changes no answer."""
    config = dataclasses.replace(config, autoencoder=autoencoder.config)
    save_bagel(folder, config, both.network, both.vision, autoencoder, torch.float16)
    write_vocabulary(folder)


def load_shapes(folder: Path) -> Shapes:
    """Dense networks in float32, for evaluation in process.

    Raises: CheckpointError: as of a deployment.
    """
    config = read_config(folder)
    both = BothNetworks(config)
    weights = load_file(str(folder / WEIGHTS_FILE))
    is_of_vision = {key: key.startswith(("vit_model.", "connector.", "vit_pos_embed.")) for key in weights}
    load_strict(
        both.network,
        {key: value for key, value in weights.items() if not is_of_vision[key]},
        where=str(folder), device="cpu", dtype=torch.float32, spelling=lambda key: mot.published(key, config),
    )  # fmt: skip
    load_strict(
        both.vision,
        {key: value for key, value in weights.items() if is_of_vision[key]},
        where=str(folder), device="cpu", dtype=torch.float32, spelling=siglip.published,
    )  # fmt: skip
    return Shapes(config, both.requires_grad_(False), load_autoencoder(config, folder), Vocabulary(folder / TOKENIZER))


def save_scale(file: Path, config: AutoencoderConfig) -> None:
    file.write_text(json.dumps({"scale": config.scale, "shift": config.shift}) + "\n", encoding="utf-8")


def read_scale(file: Path, config: AutoencoderConfig) -> AutoencoderConfig:
    return dataclasses.replace(config, **json.loads(file.read_text(encoding="utf-8")))
