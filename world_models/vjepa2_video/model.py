"""What a served V-JEPA 2 without actions declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from world_models.vjepa2.dimensions import check_options
from world_models.vjepa2_video.config import VideoConfig
from world_models.vjepa2_video.dimensions import OPTIONS, config_for
from world_models.vjepa2_video.walks import build_graph

MAX_LATENT = 1000.0
"""Far over the square root of any latent's width, which bounds what is layer-normed."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:
        checkpoint: a folder, file or index in the Hugging Face layout, or a published `.pt`; "" to look at the model
            without running it.
        options: `preset` names a published member, `config` a `config.json`; with neither, the one beside the
            safetensors counts, or the weights of a `.pt` tell (with `image_size`, `encoder_heads` and
            `predictor_heads`, which they do not tell). `encoder_key` names the encoder's dictionary in a `.pt`.
            `random_seed` (an int) takes random weights in place of a checkpoint.
    Raises:  ConfigError: an unknown or contradictory option, or impossible dimensions. CheckpointError: the weights
             should tell the dimensions, and are missing or damaged.
    """
    check_options(name, checkpoint, options, OPTIONS)
    config = config_for(checkpoint, options)
    return ServedModel(
        name=name,
        family="vjepa2",
        doc=f"V-JEPA 2 ({config.name}): latents of clips, and predictions of hidden patches",
        graph=build_graph(config.encoder.depth),
        tasks=tasks_for(config),
        nodes_factory="world_models.vjepa2_video.nodes:build_nodes",
        checkpoint=checkpoint,
        options=dict(options),
        facts={
            "image_size": config.encoder.image_size,
            "tokens_per_tubelet": config.encoder.num_patches,
            "tubelet_size": config.encoder.tubelet_size,
            "latent_dim": config.encoder.dim,
            "max_frames": config.max_frames,
        },
    )


def tasks_for(config: VideoConfig) -> tuple[TaskSpec, ...]:
    """The tasks of the family, at these dimensions."""
    latents = ("latents of all patches, by time, row and column", ("N", config.encoder.dim))
    return (
        TaskSpec("encode", "a clip to latents", (_frames(config),), (_latents("latents", *latents),), ("encode",)),
        TaskSpec(
            "predict", "latents of hidden patches from those of visible ones",
            (
                _frames(config, optional=True),
                _latents("latents", *latents, optional=True, max_sizes=(("N", config.max_patches),)),
                _patches("target_patches", "M", "indices of the patches to predict", config),
                _patches("context_patches", "C", "indices of those to predict from; unset: all others", config, True),
            ),
            (_latents("predicted", "predicted latents of target_patches", ("M", config.encoder.dim)),),
            ("predict",),
            params=_predict_params(config),
            one_of=(("frames", "latents"),),
        ),
    )  # fmt: skip


def _predict_params(config: VideoConfig) -> tuple[ParamSpec, ...]:
    last = config.predictor.num_mask_tokens - 1
    return (
        ParamSpec(
            "mask_token", "int", min(1, last), "which learned token stands for hidden patches: 0 was trained on small "
            "blocks, 1 on large ones", minimum=0, maximum=last,
        ),
        ParamSpec(
            "encode_context_only", "bool", False, "the encoder sees context_patches alone, as in training; false: it "
            "sees the whole clip, and context_patches choose from what it gives; true needs frames",
        ),
    )  # fmt: skip


def _frames(config: VideoConfig, *, optional: bool = False) -> TensorSpec:
    size = config.encoder.image_size
    return TensorSpec(
        "frames", ("T", size, size, config.encoder.num_channels), ("uint8", "float32"),
        f"RGB frames, oldest first: one, or a multiple of {config.encoder.tubelet_size}",
        "uint8: 0 to 255; float32: normalised with ImageNet's mean and std", optional=optional,
        max_sizes=(("T", config.max_frames),),
    )  # fmt: skip


def _latents(
    name: str,
    doc: str,
    shape: tuple[int | str, ...],
    *,
    optional: bool = False,
    max_sizes: tuple[tuple[str, int], ...] = (),
) -> TensorSpec:
    return TensorSpec(name, shape, ("float32",), doc, optional=optional, max_sizes=max_sizes, max_abs=MAX_LATENT)


def _patches(name: str, symbol: str, doc: str, config: VideoConfig, optional: bool = False) -> TensorSpec:
    limit = ((symbol, config.max_patches),)
    return TensorSpec(name, (symbol,), ("int64",), doc, optional=optional, max_sizes=limit)
