"""Texts to tokens, and what a request begins with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from generators.bagel.config import BagelConfig
from generators.bagel.contexts import Positions
from generators.bagel.options import check_drawing, size_in_tokens
from generators.bagel.stateless import Stateless
from generators.bagel.tokens import BagelTokens
from generators.bagel.walks import TO_THINK
from generators.llama.chat_nodes import check_not_forged
from generators.llama.text_pieces import read_stops
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall
from mstar_rt.model.conversation import Turn, read_conversation, read_text


class Tokenize(Stateless):
    """A conversation to tokens; before a plan, with the text that asks for one."""

    def __init__(self, tokens: BagelTokens, config: BagelConfig) -> None:
        self._tokens = tokens
        self._config = config

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        check_drawing(call.params, self._config)
        if "stop" in call.params:
            read_stops(call.params["stop"])
        turns = read_conversation(call.inputs["conversation"].cpu().numpy())
        check_not_forged(turns, self._tokens)
        if "num_denoise_steps" in call.params:
            _check_request(turns)
        texts = [self._config.think_prompt] if call.node == TO_THINK else []
        wrapped = [self._tokens.wrapped(text) for text in (*texts, *(turn["content"] for turn in turns))]
        num_earlier = sum(map(len, wrapped[:-1]))
        return {"ids": torch.tensor(list(chain.from_iterable(wrapped))), "num_earlier": torch.tensor(num_earlier)}


def _check_request(turns: Sequence[Turn]) -> None:
    """Raises:  InvalidArgument: it is not what an image can be made of."""
    roles = [turn["role"] for turn in turns]
    if roles not in (["user"], ["system", "user"]):
        raise InvalidArgument(
            f"the conversation has turns of {', '.join(roles)}, but an image is made of one turn of the user, with at "
            "most one of the system before it: leave the others out"
        )


class Begin(Stateless):
    """No context yet, and how large the image shall be."""

    def __init__(self, config: BagelConfig) -> None:
        self._config = config

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        return {"positions": Positions().tensor(), "size": torch.tensor(size_in_tokens(call.params, self._config))}


class Thought(Stateless):
    """What was planned, as one more text."""

    def __init__(self, tokens: BagelTokens) -> None:
        self._tokens = tokens

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        text = read_text(call.inputs["written"].cpu().numpy(), "written")
        return {"thought_ids": torch.tensor(self._tokens.wrapped(text))}
