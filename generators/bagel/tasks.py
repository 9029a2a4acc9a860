"""What can be asked of the model. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generators.bagel.config import BagelConfig
from generators.bagel.options import drawing_params, size_params
from generators.bagel.sizes import MAX_IMAGE_SIDE
from generators.llama.options import token_params
from generators.llama.tasks import chat_task
from mstar_rt.model import ParamSpec, TaskSpec, TensorSpec

USUAL_THOUGHT_TOKENS = 1000
NOTHING: Mapping[str, Any] = {}

IMAGE = TensorSpec(
    "image", ("H", "W", 3), ("uint8",), "RGB", "0 to 255", max_sizes=(("H", MAX_IMAGE_SIDE), ("W", MAX_IMAGE_SIDE))
)
SEED = ParamSpec("seed", "int", None, "equal seeds draw equal images; unset: fresh", minimum=0, optional=True)


def all_tasks(config: BagelConfig, longest: int) -> tuple[TaskSpec, ...]:
    """`longest`: tokens of a context."""
    chat = chat_task(longest, NOTHING)
    conversation, written, words = chat.inputs, chat.outputs, chat.params
    num_tokens = next(spec for spec in written if spec.name == "num_input_tokens")
    drawn = (*_drawn(), num_tokens)
    sizes, drawing = size_params(config), drawing_params(config, edits=False)
    tasks = [
        TaskSpec(
            "chat", chat.doc, conversation, written, ("prefill_text", "decode"), params=words,
            criticality="generation", anytime=True,
        ),
        TaskSpec(
            "describe_image", "a conversation about an image to the assistant's next turn", (*conversation, IMAGE),
            written, ("prefill_vit", "prefill_text_after_images", "decode"), params=words, criticality="generation",
            anytime=True,
        ),
        TaskSpec(
            "text_to_image", "what the user asks for, as an image", conversation, drawn,
            ("prefill_text", "image_gen", "vae_decode"), params=(*sizes, *drawing, SEED), criticality="generation",
        ),
        TaskSpec(
            "edit_image", "an image, changed as the user asks", (*conversation, IMAGE), drawn,
            ("prefill_vae", "prefill_vit", "prefill_text_after_images", "image_gen", "vae_decode"),
            params=(*drawing_params(config, edits=True), _sample_latents(), SEED), criticality="generation",
        ),
    ]  # fmt: skip
    if config.think_prompt:
        thought = token_params(longest - 1, {"max_tokens": usual_thought_tokens(longest)})
        stop = next(param for param in words if param.name == "stop")
        tasks.append(
            TaskSpec(
                "think_and_draw", "the same, planned in words first", conversation,
                (*_drawn(), *written),
                ("prefill_text_to_think", "decode", "prefill_thought", "image_gen", "vae_decode"),
                params=(*sizes, *drawing, *thought, stop), criticality="generation",
            )
        )  # fmt: skip
    return tuple(tasks)


def usual_thought_tokens(longest: int) -> int:
    return min(USUAL_THOUGHT_TOKENS, max(1, longest // 2))


def _drawn() -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("step", (), ("int64",), "denoise steps that are done"),
        TensorSpec("preview", ("H", "W", 3), ("uint8",), "RGB, what it looks like by now", "0 to 255", optional=True),
        TensorSpec("latents", ("T", "D"), ("float32",), "after that step, row by row", optional=True),
        TensorSpec("image", ("H", "W", 3), ("uint8",), "RGB", "0 to 255"),
    )


def _sample_latents() -> ParamSpec:
    return ParamSpec(
        "sample_latents",
        "bool",
        False,
        "the autoencoder's latents of the image are drawn, by the seed; else their mean",
    )
