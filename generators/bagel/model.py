"""What a served BAGEL declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from generators.bagel.config import BagelConfig, read_config
from generators.bagel.options import MAX_DENOISE_STEPS
from generators.bagel.room import num_read
from generators.bagel.tasks import all_tasks
from generators.bagel.tokens import BagelTokens
from generators.bagel.walks import CACHE, MAIN, WITHOUT_IMAGE, WITHOUT_TEXT, build_graph
from generators.llama.model import PAGE_TOKENS
from generators.llama.options import check_known, max_sequence_tokens, packaged_name
from generators.llama.room import check_room, most_tokens
from mstar_rt.errors import ConfigError
from mstar_rt.model import ChatSpec, GenerationSpec, ImageSpec, KVSpec, ServedModel

OPTIONS = ("checkpoint", "max_sequence_tokens", "think_prompt")
SHAPES = "shapes"
PACKAGED = {SHAPES: Path(__file__).parent / "weights" / SHAPES}
"""Checkpoints that come with this package."""
USUAL_MAX_SEQUENCE_TOKENS = 16_384
"""An image of 1024 x 1024 pixels that is changed takes 9,000."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:
        checkpoint: a folder as published: llm_config.json, vit_config.json, ema.safetensors, ae.safetensors,
            tokenizer.json, and perhaps config.json (see config.BLOCK). None: "shapes".
        options: `checkpoint`, in place of a folder, names weights that come with this package: "shapes".
            `max_sequence_tokens` is the longest context; a worker needs cache for at least one. `think_prompt`: the
            text that asks for a plan before an image is drawn, in place of the checkpoint's; "": no plans.
    Raises:  ConfigError: an unknown or contradictory option, no such folder, or another kind of model; contexts too
                 short for any request of some task.
    """
    check_known(name, options, OPTIONS)
    config = config_of(name, checkpoint, options)
    language = config.language
    longest = max_sequence_tokens(name, options, language.max_positions, USUAL_MAX_SEQUENCE_TOKENS)
    thinks = bool(config.think_prompt)
    model = ServedModel(
        name=name,
        family="bagel",
        doc=f"BAGEL ({config.name}): texts and images to texts and images",
        graph=build_graph(longest - 1, MAX_DENOISE_STEPS, thinks),
        tasks=all_tasks(config, longest),
        nodes_factory="generators.bagel.nodes:build_nodes",
        caches={
            CACHE: KVSpec(
                language.depth, language.num_kv_heads, language.head_dim, PAGE_TOKENS, longest, lifetime="request",
                kept=(MAIN, WITHOUT_TEXT, WITHOUT_IMAGE),
            )
        },
        checkpoint=checkpoint,
        options=dict(options),
        facts={
            "max_sequence_tokens": longest,
            "token_pixels": config.token_pixels,
            "max_image_side": config.token_pixels * config.max_latent_side,
        },
        generation=GenerationSpec(
            chat=ChatSpec(task="chat", image_task="describe_image"),
            images=ImageSpec(
                draw="text_to_image", think="think_and_draw" if thinks else "", edit="edit_image",
                default_size=(config.defaults.height, config.defaults.width),
            ),
        ),
    )  # fmt: skip
    _check_think_prompt(model, config)
    _check_room(model, config)
    return model


def _check_think_prompt(model: ServedModel, config: BagelConfig) -> None:
    """A deployment's own. The tokenizer is read only where there is one, as that takes time."""
    if not model.options.get("think_prompt"):
        return
    special = _tokens(model, config).special_in(config.think_prompt)
    if special is not None:
        raise ConfigError(
            f"model {model.name!r}: option 'think_prompt' has {special!r} in it, which this model reads as the border "
            "of a text: take it out"
        )


def _check_room(model: ServedModel, config: BagelConfig) -> None:
    def exactly() -> dict[str, int]:
        tokens = _tokens(model, config)
        return num_read(config, lambda text: len(tokens.encode(text, has_begin=False)))

    check_room(model, num_read(config, most_tokens), exactly, {"think_and_draw": "think_prompt"})


def _tokens(model: ServedModel, config: BagelConfig) -> BagelTokens:
    return BagelTokens(folder_of(model.name, model.checkpoint, model.options), config.language.vocab_size)


def config_of(name: str, checkpoint: str, options: Mapping[str, Any]) -> BagelConfig:
    """Dimensions, with what the deployment's options change."""
    config = read_config(folder_of(name, checkpoint, options))
    prompt = options.get("think_prompt", config.think_prompt)
    if not isinstance(prompt, str):
        raise ConfigError(f"model {name!r}: option 'think_prompt' is {prompt!r}, expected a text")
    if prompt and not prompt.strip():
        raise ConfigError(
            f"model {name!r}: 'think_prompt' has no word in it, expected a text, or an empty one for no plans"
        )
    return replace(config, think_prompt=prompt)


def folder_of(name: str, checkpoint: str, options: Mapping[str, Any]) -> Path:
    packaged = packaged_name(name, checkpoint, options, PACKAGED)
    return Path(checkpoint) if checkpoint else PACKAGED[packaged or SHAPES]
