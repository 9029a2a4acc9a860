"""Which dimensions a deployment means: those of a preset, of a JSON file, or of the weights themselves.

No torch, unless a `.pt` must be looked into, which nothing but torch reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import CheckpointError, ConfigError, nearest
from mstar_rt.nn.weight_shapes import Shapes, in_sections, safetensors_shapes
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config, preset

DEFAULT_PRESET = "tabletop"
SECTIONS = ("encoder", "predictor")
ENCODER_KEYS = ("encoder", "target_encoder", "ema_encoder")
"""Dictionaries of a published `.pt` that may hold an encoder: the trained one, or its moving average."""

ENCODER_HEADS = {1024: 16, 1280: 16, 1408: 22, 1664: 26}
PREDICTOR_HEADS = {1024: 16}
"""Heads of the published networks, by width: weights have the same shapes whatever the number of heads."""

FROM_WEIGHTS = ("image_size", "encoder_heads", "predictor_heads", "use_extrinsics")
"""What weights do not tell. Presets and JSON files do, so there these options are refused."""
OPTIONS = ("preset", "config", "random_seed", "encoder_key", *FROM_WEIGHTS)
DEFAULT_IMAGE_SIZE = 256


def check_options(name: str, checkpoint: str, options: Mapping[str, Any], known: tuple[str, ...] = OPTIONS) -> None:
    """Whether the options of a deployment make sense together.

    Raises: ConfigError: an unknown option, one of another kind, or two that contradict each other.
    """
    where = f"model {name!r}"
    for key in options:
        if key not in known:
            raise ConfigError(f"{where}: unknown option {key!r}, {nearest(str(key), known)}")
    if "preset" in options and "config" in options:
        raise ConfigError(f"{where} has both options 'preset' and 'config', give one of them")
    _check_seed(where, checkpoint, options)
    for key in ("image_size", "encoder_heads", "predictor_heads"):
        value = options.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{where}: option {key!r} is {value!r}, expected a whole number from 1")
    if not isinstance(options.get("use_extrinsics", False), bool):
        raise ConfigError(f"{where}: option 'use_extrinsics' is {options['use_extrinsics']!r}, expected true or false")
    if "encoder_key" in options:
        if options["encoder_key"] not in ENCODER_KEYS:
            raise ConfigError(
                f"{where}: option 'encoder_key' is {options['encoder_key']!r}, "
                f"expected one of {', '.join(ENCODER_KEYS)}"
            )
        if not is_torch_file(checkpoint):
            raise ConfigError(f"{where}: option 'encoder_key' chooses within a .pt, but the checkpoint is none")


def config_for(checkpoint: str, options: Mapping[str, Any]) -> VJepa2Config:
    """The dimensions that a deployment of the action-conditioned family asks for.

    Raises: ConfigError, CheckpointError: the file of dimensions or of weights is missing or does not tell them.
    """
    beside = Path(checkpoint).with_suffix(".json") if checkpoint else None
    if "preset" in options:
        config, source = preset(options["preset"]), f"the preset {options['preset']!r}"
    elif "config" in options:
        config, source = VJepa2Config.from_json(Path(options["config"])), str(options["config"])
    elif beside is not None and beside.is_file():
        config, source = VJepa2Config.from_json(beside), str(beside)
    elif checkpoint:
        return _from_weights(Path(checkpoint), options)
    else:
        config, source = preset(DEFAULT_PRESET), f"the preset {DEFAULT_PRESET!r}"
    refuse_from_weights(options, source)
    return config


def refuse_from_weights(options: Mapping[str, Any], source: str) -> None:
    """Raises: ConfigError: an option that only counts where the weights tell the dimensions."""
    for key in FROM_WEIGHTS:
        if key in options:
            raise ConfigError(f"option {key!r} counts where the dimensions come from the weights; here {source} has it")


def encoder_from_shapes(shapes: Shapes, options: Mapping[str, Any], where: str) -> EncoderConfig:
    """The encoder whose parameters have these shapes, under the published names.

    Raises: CheckpointError: the tensors that tell are missing. ConfigError: the heads are not known.
    """
    dim, channels, tubelet, patch, _ = shape_of(shapes, "patch_embed.proj.weight", 5, where)
    return EncoderConfig(
        dim=dim,
        depth=num_blocks(shapes, "blocks.", where),
        num_heads=heads_for(dim, ENCODER_HEADS, options, "encoder_heads", where),
        mlp_dim=shape_of(shapes, "blocks.0.mlp.fc1.weight", 2, where)[0],
        image_size=options.get("image_size", DEFAULT_IMAGE_SIZE),
        patch_size=patch,
        tubelet_size=tubelet,
        num_channels=channels,
    )


def shape_of(shapes: Shapes, key: str, num_sizes: int, where: str) -> tuple[int, ...]:
    if key not in shapes:
        raise CheckpointError(f"{where} lacks {key!r}, from which the dimensions are read")
    if len(shapes[key]) != num_sizes:
        raise CheckpointError(f"{where}: {key!r} has shape {list(shapes[key])}, expected {num_sizes} sizes")
    return shapes[key]


def num_blocks(shapes: Shapes, prefix: str, where: str) -> int:
    """How many parts are numbered under `prefix`."""
    indices = {key.removeprefix(prefix).partition(".")[0] for key in shapes if key.startswith(prefix)}
    if not indices:
        raise CheckpointError(f"{where} lacks {prefix + '0'!r} and all that would follow it")
    return len(indices)


def heads_for(dim: int, known: Mapping[int, int], options: Mapping[str, Any], option: str, where: str) -> int:
    heads = options.get(option, known.get(dim))
    if heads is None:
        raise ConfigError(f"{where} is {dim} wide, a width whose number of heads is not known; give option {option!r}")
    return int(heads)


def is_torch_file(checkpoint: str | Path) -> bool:
    return Path(checkpoint).suffix in {".pt", ".pth"}


def torch_shapes(path: Path, options: Mapping[str, Any]) -> dict[str, Shapes]:
    """The shapes in a published `.pt`. Needs torch; a server that shall do without it is given the dimensions."""
    from world_models.vjepa2.checkpoint import read_published

    weights = read_published(path, options.get("encoder_key", "encoder"))
    return {section: {key: tuple(value.shape) for key, value in held.items()} for section, held in weights.items()}


def _from_weights(path: Path, options: Mapping[str, Any]) -> VJepa2Config:
    if is_torch_file(path):
        shapes = torch_shapes(path, options)
    else:
        shapes = in_sections(safetensors_shapes(path), SECTIONS, path)
    encoder = encoder_from_shapes(shapes["encoder"], options, f"{path}: encoder")
    where, held = f"{path}: predictor", shapes["predictor"]
    dim, latent_dim = shape_of(held, "predictor_embed.weight", 2, where)
    predictor = PredictorConfig(
        latent_dim=latent_dim,
        dim=dim,
        depth=num_blocks(held, "predictor_blocks.", where),
        num_heads=heads_for(dim, PREDICTOR_HEADS, options, "predictor_heads", where),
        mlp_dim=shape_of(held, "predictor_blocks.0.mlp.fc1.weight", 2, where)[0],
        grid_rows=encoder.grid_size,
        grid_columns=encoder.grid_size,
        action_dim=shape_of(held, "action_encoder.weight", 2, where)[1],
        state_dim=shape_of(held, "state_encoder.weight", 2, where)[1],
        extrinsics_dim=shape_of(held, "extrinsics_encoder.weight", 2, where)[1],
        use_extrinsics=options.get("use_extrinsics", False),
    )
    return VJepa2Config(path.stem, encoder, predictor)


def _check_seed(where: str, checkpoint: str, options: Mapping[str, Any]) -> None:
    seed = options.get("random_seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ConfigError(f"{where}: option 'random_seed' is {seed!r}, expected a whole number from 0")
    if seed is not None and checkpoint:
        raise ConfigError(f"{where} has both a checkpoint and 'random_seed', give one of them")
