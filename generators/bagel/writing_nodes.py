"""Text out of a context: how it begins, goes on and ends."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from generators.bagel.backbone import Backbone
from generators.bagel.contexts import read_positions
from generators.bagel.stateless import Stateless
from generators.bagel.tokens import BagelTokens
from generators.bagel.walks import MAIN, WRITING
from generators.llama.chat_nodes import TextEnding
from generators.llama.language_nodes import Decode
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind


class BeginWriting(Stateless):
    """The token that begins a text, as if it had been drawn. It is none of the text that goes out."""

    def __init__(self, tokens: BagelTokens) -> None:
        self._begin = torch.tensor([tokens.begin_id])
        self._ending = TextEnding(tokens, [tokens.end_id])

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        history = torch.cat([call.inputs["ids"].cpu(), self._begin])
        return {"token": self._begin, "history": history, "state": self._ending.begin(call, len(history))}


class Write:
    """The next token, on a fork of main: what reads the text afterwards appends it there, as a text of its own."""

    def __init__(self, backbone: Backbone, tokens: BagelTokens) -> None:
        self._decode = Decode(_Words(backbone), TextEnding(tokens, [tokens.end_id]))

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        if call.iteration[-1] == 0:
            call.sequences.fork(MAIN, WRITING)
        return [AttentionStep(call.sequences.get(WRITING), 1, StepKind.CAUSAL_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        positions = [read_positions(call.inputs["positions"]).main + call.iteration[-1] for call in calls]
        return self._decode.draw_next(calls, positions, attention)


class Finish(Stateless):
    """Why the text ended, and the whole of it."""

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        pieces: Sequence[torch.Tensor] = call.inputs["texts"]  # type: ignore[assignment]
        return {"reason": call.inputs["reason"], "written": torch.cat(list(pieces))}


class _Words:
    """The backbone as a network that reads words alone; see language_nodes.Reader."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.scores = backbone.scores

    @property
    def device(self) -> torch.device:
        return self._backbone.device

    def read(self, ids: torch.Tensor, positions: torch.Tensor, last: int, attention: AttentionPlan) -> torch.Tensor:
        return self._backbone.read(self._backbone.embed(ids), positions, last, attention)
