"""What a served pi0.5 or pi0 declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import ConfigError
from mstar_rt.model import KVSpec, ServedModel
from policies.anytime.walks import with_anytime
from policies.pi05.settings import MAX_DENOISE_STEPS, PolicySettings, settings_for
from policies.pi05.tasks import act_task, policy_for
from policies.pi05.walks import CACHE, build_graph

PAGE_TOKENS = 16


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The pi0.5 `name` of a deployment.

    Args:
        checkpoint: `.safetensors` in openpi's or LeRobot's layout, or the folder of one; "" to look at the model only.
        options: `config` names the JSON file of the settings; without, the one beside the checkpoint under the same
            name (`policy.json` in a folder). Any of its keys may be an option instead: see README.md. `random_seed`
            (an int) takes random weights in place of a checkpoint.
    Raises:  ConfigError: an unknown, missing or contradictory option, or impossible dimensions.
    """
    return _declare("pi05", name, checkpoint, options)


def declare_pi0(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The pi0 `name` of a deployment; see `declare`."""
    return _declare("pi0", name, checkpoint, options)


def settings_of(model: ServedModel) -> PolicySettings:
    """The settings that a declaration was made from."""
    return settings_for(model.name, model.family, model.checkpoint, model.options)


def _declare(family: str, name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    seed = options.get("random_seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ConfigError(f"model {name!r}: option 'random_seed' is {seed!r}, expected a whole number from 0")
    if seed is not None and checkpoint:
        raise ConfigError(f"model {name!r} has both a checkpoint and 'random_seed', give one of them")
    settings = settings_for(name, family, checkpoint, options)
    network = settings.network
    return ServedModel(
        name=name,
        family=family,
        doc=f"{family} ({network.name}): what cameras see and words ask for to a chunk of actions",
        graph=build_graph(
            [camera.tensor for camera in settings.cameras],
            has_state=settings.state is not None,
            has_state_token=settings.has_state_token,
            max_denoise_steps=MAX_DENOISE_STEPS,
        ),
        tasks=with_anytime(act_task(settings), settings.min_denoise_steps, MAX_DENOISE_STEPS),
        nodes_factory="policies.pi05.nodes:build_nodes",
        caches={
            CACHE: KVSpec(
                num_layers=network.depth,
                num_kv_heads=network.num_kv_heads,
                head_dim=network.head_dim,
                page_size=PAGE_TOKENS,
                max_sequence_tokens=settings.max_context_tokens,
            )
        },
        checkpoint=checkpoint,
        options=dict(options),
        facts={
            "image_size": network.vision.image_size,
            "tokens_per_image": network.vision.num_patches,
            "max_context_tokens": settings.max_context_tokens,
            "network_action_dim": network.action_dim,
        },
        policy=policy_for(settings) if settings.tokenizer else None,
    )
