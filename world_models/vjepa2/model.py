"""What a served V-JEPA 2-AC declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.model import KVSpec, ServedModel
from world_models.vjepa2.dimensions import check_options, config_for
from world_models.vjepa2.tasks import tasks_for
from world_models.vjepa2.walks import CACHE, PAST, build_graph


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:
        checkpoint: a published `.pt` or our `.safetensors`; "" to look at the model without running it.
        options: `preset` names a member of the family, or `config` the JSON file of its dimensions; with neither, the
            JSON that lies beside the checkpoint under the same name, else the weights themselves tell (with
            `image_size`, `encoder_heads`, `predictor_heads` and `use_extrinsics`, which they do not tell). Without a
            checkpoint the preset is "tabletop". `encoder_key` names the encoder's dictionary in a `.pt`. `random_seed`
            (an int) takes random weights in place of a checkpoint, for benchmarks of any size.
    Raises:  ConfigError: an unknown or contradictory option, or impossible dimensions. CheckpointError: the weights
             should tell the dimensions, and are missing or damaged.
    """
    check_options(name, checkpoint, options)
    config = config_for(checkpoint, options)
    predictor = config.predictor
    return ServedModel(
        name=name,
        family="vjepa2_ac",
        doc=f"V-JEPA 2-AC ({config.name}): imagines what actions lead to, and plans towards an image goal",
        graph=build_graph(predictor.max_frames, predictor.use_extrinsics),
        tasks=tasks_for(config),
        nodes_factory="world_models.vjepa2.nodes:build_nodes",
        caches={
            CACHE: KVSpec(
                num_layers=predictor.depth,
                num_kv_heads=predictor.num_heads,
                head_dim=predictor.head_dim,
                page_size=predictor.frame_tokens,
                max_sequence_tokens=predictor.max_frames * predictor.frame_tokens,
                lifetime="session",
                kept=(PAST,),
            )
        },
        checkpoint=checkpoint,
        options=dict(options),
        facts={
            "image_size": config.encoder.image_size,
            "tokens_per_frame": config.encoder.num_patches,
            "latent_dim": config.encoder.dim,
            "max_rollout_steps": predictor.max_frames,
            "trained_positions": predictor.trained_frames,
            "frames_per_second": config.frames_per_second,
        },
    )
