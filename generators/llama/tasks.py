"""The chat task of a language model. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generators.llama.options import token_params
from mstar_rt.model import ParamSpec, TaskSpec, TensorSpec

BYTES_PER_TOKEN = 256
"""No conversation has more per token: longer ones are refused before they are read."""
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256


def chat_task(max_sequence_tokens: int, defaults: Mapping[str, Any]) -> TaskSpec:
    limit = max_sequence_tokens - 1
    return TaskSpec(
        "chat",
        "a conversation to the assistant's next turn",
        (
            TensorSpec(
                "conversation", ("N",), ("uint8",), 'JSON, [{"role": "user", "content": "Hello"}]', "UTF-8",
                max_sizes=(("N", BYTES_PER_TOKEN * max_sequence_tokens),),
            ),
        ),
        (
            TensorSpec("text", ("B",), ("uint8",), "what is sure by now, after each token", "UTF-8", optional=True),
            TensorSpec("token", (1,), ("int64",), "drawn in this step; one that ends the text included"),
            TensorSpec("reason", (), ("int64",), "1: the model ended, 2: a stop string, 3: max_tokens, 4: deadline"),
            TensorSpec("num_input_tokens", (), ("int64",), "tokens of the conversation, with those of the template"),
        ),
        ("chat",),
        params=(
            *token_params(limit, defaults),
            ParamSpec(
                "stop", "str", "[]", f"JSON, a list of up to {MAX_STOPS} strings that end the text, and no part of it"
            ),
        ),
        criticality="generation",
        anytime=True,
    )  # fmt: skip
