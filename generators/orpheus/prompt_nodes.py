"""What stands around the sound: a text to the prompt of the language model, and what was said in all."""

from __future__ import annotations

import torch

from generators.llama.chat_nodes import check_length
from generators.llama.tokenizer import LlamaTokenizer
from generators.orpheus.codec_nodes import nothing_heard
from generators.orpheus.config import Vocabulary, spoken
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult, OneByOne
from mstar_rt.model.conversation import read_text


class Prompt(OneByOne):
    """`text` uint8 [N], UTF-8 -> the ids that the language model goes on from."""

    def __init__(self, tokenizer: LlamaTokenizer, vocabulary: Vocabulary, max_sequence_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._max_tokens = max_sequence_tokens

    def run_one(self, call: NodeCall) -> NodeResult:
        ids = self.ids(read_text(call.inputs["text"].cpu().numpy(), "text"), call.params.get("voice", ""))
        check_length(len(ids), call.params["max_tokens"], self._max_tokens, "text")
        return NodeResult({"ids": torch.tensor(ids), "num_input_tokens": torch.tensor(len(ids)), **nothing_heard()})

    def ids(self, text: str, voice: str) -> list[int]:
        """Raises: InvalidArgument: it has no word, or forges what only the prompt has."""
        if not text.strip():
            raise InvalidArgument("the text has no word in it, expected something to say")
        forged = [special for special in self._tokenizer.special_texts if special in text]
        if forged:
            raise InvalidArgument(
                f"the text has {forged[0]!r} in it, which this model does not read as text: take it out"
            )
        words = self._vocabulary
        said = self._tokenizer.encode(spoken(text, voice), has_begin=True)
        return [*words.prompt_start, *said, *words.prompt_end]


class Finish(OneByOne):
    """How much was read and written, and why it ended."""

    def run_one(self, call: NodeCall) -> NodeResult:
        num_read = call.inputs["num_input_tokens"]
        num_written = torch.tensor(len(call.inputs["history"]) - int(num_read))
        return NodeResult(
            {"reason": call.inputs["reason"], "num_input_tokens": num_read, "num_output_tokens": num_written}
        )
