"""The prompt of a request, and its state as the network takes it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch.nn.functional import pad

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from policies.pi05.processor import Processor, processor_of
from policies.pi05.settings import PolicySettings
from policies.pi05.text import Prompter, load_tokenizer

UNKNOWN_WORDS = "unknown_words"
"""The flag of a prompt with words that the vocabulary does not have."""


class Prepare:
    """Without a tokenizer requests bring their token ids."""

    def __init__(self, settings: PolicySettings, processors: Mapping[str, Processor]) -> None:
        self._settings = settings
        self._processors = processors
        self._prompter: Prompter | None = None
        if settings.tokenizer:
            network = settings.network
            tokenizer = load_tokenizer(settings.tokenizer, network.vocab_size)
            self._prompter = Prompter(
                tokenizer, settings.max_prompt_tokens, state_as_text=settings.discrete_state_input
            )

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._prepared(call) for call in calls]

    def _prepared(self, call: NodeCall) -> NodeResult:
        state = call.inputs.get("state")
        normalised = None if state is None else processor_of(self._processors, call).normalised_state(state)
        prompt, flags = self._prompt(call, normalised)
        outputs = {"prompt": prompt}
        if self._settings.has_state_token:
            assert normalised is not None
            short = self._settings.network.action_dim - len(normalised)
            outputs["normalised_state"] = pad(normalised, (0, short)).to(torch.float32)
        return NodeResult(outputs, flags=flags)

    def _prompt(self, call: NodeCall, state: torch.Tensor | None) -> tuple[torch.Tensor, tuple[str, ...]]:
        given, instruction = call.inputs["token_ids"], call.params.get("instruction", "")
        if given is not None:
            if instruction:
                raise InvalidArgument("token_ids and an instruction are both given, give one of them")
            return given, ()
        assert self._prompter is not None, "without a tokenizer the task needs token_ids"
        ids = self._prompter.ids(instruction, None if state is None else state.cpu().numpy())
        flags = (UNKNOWN_WORDS,) if self._prompter.has_unknown(ids) else ()
        return torch.tensor(ids), flags
