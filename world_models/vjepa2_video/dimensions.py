"""Which dimensions a deployment of the family means. No torch, unless a `.pt` must be looked into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError
from mstar_rt.nn.weight_shapes import safetensors_files
from world_models.vjepa2.dimensions import (
    encoder_from_shapes,
    heads_for,
    is_torch_file,
    num_blocks,
    refuse_from_weights,
    shape_of,
    torch_shapes,
)
from world_models.vjepa2_video.config import MaskedPredictorConfig, VideoConfig, preset

DEFAULT_PRESET = "vit_large"
PREDICTOR_HEADS = {384: 12}
OPTIONS = (
    "preset", "config", "random_seed", "encoder_key", "image_size", "encoder_heads", "predictor_heads",
)  # fmt: skip
CONFIG_FILE = "config.json"


def config_for(checkpoint: str, options: Mapping[str, Any]) -> VideoConfig:
    """The dimensions of a preset, of a `config.json` (named, or beside the weights), or of the weights themselves.

    Raises: ConfigError, CheckpointError: the file of dimensions or of weights is missing or does not tell them.
    """
    path = Path(checkpoint)
    beside = (path if path.is_dir() else path.parent) / CONFIG_FILE if checkpoint else None
    if "preset" in options:
        config, source = preset(options["preset"]), f"the preset {options['preset']!r}"
    elif "config" in options:
        config, source = VideoConfig.from_hugging_face(Path(options["config"])), str(options["config"])
    elif beside is not None and not is_torch_file(path) and beside.is_file():
        config, source = VideoConfig.from_hugging_face(beside), str(beside)
    elif checkpoint:
        return _from_weights(path, options)
    else:
        config, source = preset(DEFAULT_PRESET), f"the preset {DEFAULT_PRESET!r}"
    refuse_from_weights(options, source)
    return config


def _from_weights(path: Path, options: Mapping[str, Any]) -> VideoConfig:
    if not is_torch_file(path):
        safetensors_files(path)
        raise ConfigError(
            f"there is no {CONFIG_FILE} beside {path}, where this layout has its dimensions; give 'config'"
        )
    shapes = torch_shapes(path, options)
    encoder = encoder_from_shapes(shapes["encoder"], options, f"{path}: encoder")
    where, held = f"{path}: predictor", shapes["predictor"]
    dim, latent_dim = shape_of(held, "predictor_embed.weight", 2, where)
    predictor = MaskedPredictorConfig(
        latent_dim=latent_dim,
        dim=dim,
        depth=num_blocks(held, "predictor_blocks.", where),
        num_heads=heads_for(dim, PREDICTOR_HEADS, options, "predictor_heads", where),
        mlp_dim=shape_of(held, "predictor_blocks.0.mlp.fc1.weight", 2, where)[0],
        num_mask_tokens=num_blocks(held, "mask_tokens.", where),
    )
    return VideoConfig(path.stem, encoder, predictor)
