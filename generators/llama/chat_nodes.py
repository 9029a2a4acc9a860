"""What makes a language model a chat: conversations to prompts, tokens to text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from generators.llama.language_nodes import EndIds, Written
from generators.llama.options import usual_max_tokens
from generators.llama.text_pieces import Pieces, next_piece, read_stops
from generators.llama.tokenizer import ChatTemplate, LlamaTokenizer
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult, OneByOne, Reason
from mstar_rt.model.conversation import Turn, read_conversation


class Prompt(OneByOne):
    """A conversation to the tokens that the model goes on from."""

    def __init__(self, tokenizer: LlamaTokenizer, template: ChatTemplate, max_sequence_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_tokens = max_sequence_tokens

    def run_one(self, call: NodeCall) -> NodeResult:
        read_stops(call.params["stop"])
        ids = self.ids(call.inputs["conversation"].cpu().numpy())
        usual = usual_max_tokens(self._max_tokens - 1)
        check_length(len(ids), call.params["max_tokens"], self._max_tokens, "conversation", usual)
        return NodeResult({"ids": torch.tensor(ids), "num_input_tokens": torch.tensor(len(ids))})

    def ids(self, conversation: np.ndarray) -> list[int]:
        """Raises:  InvalidArgument: it is none, or forges what only the template writes."""
        turns = read_conversation(conversation)
        check_not_forged(turns, self._tokenizer)
        return self._tokenizer.encode(self._template.write(turns), has_begin=False)


def check_not_forged(turns: Sequence[Turn], tokenizer: LlamaTokenizer) -> None:
    """Raises:  InvalidArgument: a turn has in it what only the template writes."""
    for index, turn in enumerate(turns):
        forged = tokenizer.special_in(turn["content"])
        if forged is not None:
            raise InvalidArgument(
                f"turn {index} of the conversation has {forged!r} in it, which this model reads as the border of a "
                "turn: take it out"
            )


def check_length(num_prompt: int, max_tokens: int, most: int, what: str, usual: int | None = None) -> None:
    """`usual`: the default of max_tokens, which a request may have without saying so.

    Raises:  InvalidArgument: prompt and answer are longer together than the model takes. Nothing is ever cut.
    """
    if num_prompt + max_tokens > most:
        default = " (the default)" if max_tokens == usual else ""
        lower = f", or set max_tokens to {most - num_prompt} or less" if num_prompt < most else ""
        raise InvalidArgument(
            f"the {what} has {num_prompt} tokens and max_tokens is {max_tokens}{default}, together over the {most} "
            f"that this model takes: shorten it{lower}"
        )


class TextEnding(EndIds):
    """Ends with a token of the model, or with a stop string; `text` goes out with each token."""

    def __init__(self, tokenizer: LlamaTokenizer, end_ids: Sequence[int]) -> None:
        super().__init__(end_ids)
        self._tokenizer = tokenizer

    def begin(self, call: NodeCall, num_prompt_tokens: int) -> torch.Tensor:
        return _packed(Pieces(num_prompt_tokens, num_prompt_tokens))

    def after(
        self, call: NodeCall, token: int, history: torch.Tensor, state: torch.Tensor, due: Reason | None
    ) -> Written:
        reason = Reason.END if self.ends(call, token) else due
        pieces, stops = _unpacked(state), read_stops(call.params["stop"])
        ids = history[pieces.first :].tolist()
        piece = next_piece(pieces, ids, self._tokenizer.decode, stops, reason is not None)
        text = torch.frombuffer(bytearray(piece.text.encode()), dtype=torch.uint8) if piece.text else _NO_TEXT
        return Written({"text": text}, _packed(piece.pieces), Reason.STOP if piece.is_stopped else reason)


class Finish:
    """What was said in all, once it has been said."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({name: call.inputs[name] for name in ("reason", "num_input_tokens")}) for call in calls]


_NO_TEXT = torch.empty(0, dtype=torch.uint8)


def _packed(pieces: Pieces) -> torch.Tensor:
    """int64 [2 + characters held back]."""
    return torch.tensor([pieces.first, pieces.read, *map(ord, pieces.held)])


def _unpacked(state: torch.Tensor) -> Pieces:
    first, read, *held = state.tolist()
    return Pieces(first, read, "".join(map(chr, held)))
