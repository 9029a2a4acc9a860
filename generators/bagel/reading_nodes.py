"""Texts into contexts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from generators.bagel.backbone import Backbone
from generators.bagel.contexts import IS_MAIN, NOT_READ, Positions, read_positions
from generators.bagel.guidance import branches_read
from generators.bagel.tasks import usual_thought_tokens
from generators.bagel.walks import MAIN, WITHOUT_IMAGE, WITHOUT_TEXT
from generators.llama.chat_nodes import check_length
from generators.llama.options import usual_max_tokens
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind

TEXT_BORDERS = 2
"""The tokens that begin and end a text."""


class Stretch(NamedTuple):
    """Tokens of one sequence, the first of which stands at `position`."""

    ids: torch.Tensor
    position: int


def read_stretches(backbone: Backbone, stretches: Sequence[Stretch], attention: AttentionPlan) -> None:
    """Append them to their sequences."""
    ids = torch.cat([stretch.ids.to(backbone.device) for stretch in stretches])
    positions = torch.cat([torch.arange(each.position, each.position + len(each.ids)) for each in stretches])
    last = max(each.position + len(each.ids) for each in stretches) - 1
    backbone.read(backbone.embed(ids), positions.to(backbone.device), last, attention)


class ReadText:
    """All texts into main and, where guidance looks from there, into the context without images.

    The items of a call are tokens. What is before the last text is kept as the context without it.
    """

    def __init__(self, backbone: Backbone, max_sequence_tokens: int) -> None:
        self._backbone = backbone
        self._max_tokens = max_sequence_tokens

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return len(call.inputs["ids"])

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        main, part = call.sequences.get(MAIN), _part(call)
        num_before = main.length - part.start
        if part.start == 0:
            self._check_room(call, num_before + len(call.inputs["ids"]))
        tables = [main, *([call.sequences.get(WITHOUT_IMAGE)] if _has_own_texts(call, num_before) else [])]
        return [AttentionStep(table, len(part), StepKind.CAUSAL_APPEND) for table in tables]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        num_before = [call.sequences.get(MAIN).length - _part(call).stop for call in calls]
        stretches = [
            Stretch(call.inputs["ids"][_part(call).start : _part(call).stop], start + _part(call).start)
            for call, before in zip(calls, num_before, strict=True)
            for start in (_start(call, before), *((0,) if _has_own_texts(call, before) else ()))
        ]
        read_stretches(self._backbone, stretches, attention)
        return [
            NodeResult(self._outputs(call, before) if call.is_last_part else {})
            for call, before in zip(calls, num_before, strict=True)
        ]

    def _outputs(self, call: NodeCall, num_before: int) -> dict[str, torch.Tensor]:
        start, num_ids, num_earlier = _start(call, num_before), len(call.inputs["ids"]), int(call.inputs["num_earlier"])
        read = branches_read(call.params)
        without_text = without_image = NOT_READ
        if read.without_text:
            without_text = start + num_earlier
            call.sequences.fork(MAIN, WITHOUT_TEXT).truncate(num_before + num_earlier)
        if read.without_image:
            without_image = num_ids if num_before else IS_MAIN
        positions = Positions(start + num_ids, without_text, without_image)
        return {"positions": positions.tensor(), "num_input_tokens": torch.tensor(num_before + num_ids)}

    def _check_room(self, call: NodeCall, num_tokens: int) -> None:
        """Raises:  InvalidArgument: what is read, and what may be written behind it, is too long together."""
        what = "conversation, with its image," if num_tokens > len(call.inputs["ids"]) else "conversation"
        if "max_tokens" in call.params:
            longest, is_planned = self._max_tokens, "num_denoise_steps" in call.params
            usual = usual_thought_tokens(longest) if is_planned else usual_max_tokens(longest - 1)
            most = longest - TEXT_BORDERS if is_planned else longest
            check_length(num_tokens, call.params["max_tokens"], most, what, usual)
        elif num_tokens > self._max_tokens:
            raise InvalidArgument(
                f"the {what} has {num_tokens} tokens, over the {self._max_tokens} that this model takes: shorten it"
            )


class ReadThought:
    """A plan into main; what was there before it is the context without images, where guidance looks from there."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return len(call.inputs["thought_ids"])

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        return [AttentionStep(call.sequences.get(MAIN), len(_part(call)), StepKind.CAUSAL_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        starts = [read_positions(call.inputs["positions"]) for call in calls]
        stretches = [
            Stretch(call.inputs["thought_ids"][part.start : part.stop], start.main + part.start)
            for call, start in zip(calls, starts, strict=True)
            for part in (_part(call),)
        ]
        read_stretches(self._backbone, stretches, attention)
        return [
            NodeResult(self._outputs(call, start) if call.is_last_part else {})
            for call, start in zip(calls, starts, strict=True)
        ]

    def _outputs(self, call: NodeCall, start: Positions) -> dict[str, torch.Tensor]:
        num_ids, without_image = len(call.inputs["thought_ids"]), NOT_READ
        if branches_read(call.params).without_image:
            without_image = start.main
            main = call.sequences.get(MAIN)
            call.sequences.fork(MAIN, WITHOUT_IMAGE).truncate(main.length - num_ids)
        return {"positions": Positions(start.main + num_ids, start.without_text, without_image).tensor()}


def _part(call: NodeCall) -> range:
    return range(call.num_items) if call.part is None else call.part


def _start(call: NodeCall, num_before: int) -> int:
    """Where the first of the texts stands. Without anything before them that is 0, whatever an earlier request of the
    session has left in `positions`."""
    return read_positions(call.inputs["positions"]).main if num_before else 0


def _has_own_texts(call: NodeCall, num_before: int) -> bool:
    """Whether the context without images is another one than main, and read."""
    return num_before > 0 and branches_read(call.params).without_image
