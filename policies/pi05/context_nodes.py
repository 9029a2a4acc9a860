"""What the actions are made from: images and text into the cache, once per request."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate

import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult, by_part
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from policies.pi05.images import network_pixels
from policies.pi05.network import Pi05Network
from policies.pi05.walks import CONTEXT


class See:
    """All cameras of all requests at once. A camera that a request does not have gives no tokens, and costs nothing;
    those that it has are the items of a call."""

    def __init__(self, network: Pi05Network) -> None:
        self._network = network

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return max(1, sum([frame is not None for frame in call.inputs.values()]))

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        size = self._network.config.vision.image_size
        frames = [_frames(call) for call in calls]
        ends = list(accumulate([len(of_call) for of_call in frames]))
        pixels = [network_pixels(frame, size) for of_call in frames for frame in of_call]
        if not pixels:
            weights = self._network.projector.weight
            return [NodeResult({"image_tokens": weights.new_empty(0, len(weights))}) for _ in calls]
        tokens = self._network.embed_images(torch.stack(pixels))
        return [
            _seen(call, tokens[end - len(of_call) : end].flatten(0, 1))
            for call, of_call, end in zip(calls, frames, ends, strict=True)
        ]


def _frames(call: NodeCall) -> list[torch.Tensor]:
    """Of the cameras that the request has, those of its part."""
    frames = [frame for frame in call.inputs.values() if frame is not None]
    return frames if call.part is None else frames[call.part.start : call.part.stop]


def _seen(call: NodeCall, tokens: torch.Tensor) -> NodeResult:
    before = call.progress or []
    if not call.is_last_part:
        return NodeResult({}, progress=[*before, tokens])
    return NodeResult({"image_tokens": torch.cat([*before, tokens]) if before else tokens})


class Prefill:
    """Images and text, as one block in which everything sees everything.

    That leaves no tokens that could come later than others, so the layers are the items of a call.
    """

    def __init__(self, network: Pi05Network) -> None:
        self._network = network

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return self._network.config.depth

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        appended = call.part is not None and call.part.start > 0
        kind, num_tokens = StepKind.BLOCK_APPEND, _num_tokens(call)
        return [AttentionStep(call.sequences.get(CONTEXT), num_tokens, kind, appended=appended)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        groups = by_part(calls, self._network.config.depth)
        plans = attention.split([len(group) for _, group in groups])
        return [
            result
            for (layers, group), plan in zip(groups, plans, strict=True)
            for result in self._run_layers(group, layers, plan)
        ]

    def _run_layers(self, calls: Sequence[NodeCall], layers: range, attention: AttentionPlan) -> list[NodeResult]:
        tokens = torch.cat([call.progress if layers.start else self.tokens(call) for call in calls])
        counts = [_num_tokens(call) for call in calls]
        positions = torch.cat([torch.arange(count, device=tokens.device) for count in counts])
        tokens = self._network.prefill(tokens, positions, attention, layers)
        if layers.stop == self._network.config.depth:
            return [NodeResult({"num_context": torch.tensor(count)}) for count in counts]
        return [NodeResult({}, progress=of_call) for of_call in tokens.split(counts)]

    def tokens(self, call: NodeCall) -> torch.Tensor:
        """[M, width]: images, then text."""
        prompt, vocab_size = call.inputs["prompt"], self._network.config.vocab_size
        if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
            raise InvalidArgument(
                f"token ids are from {int(prompt.min())} to {int(prompt.max())}, expected 0 to {vocab_size - 1}"
            )
        images = call.inputs["image_tokens"]
        return torch.cat([images, self._network.embed_text(prompt.to(images.device)).to(images.dtype)])


def _num_tokens(call: NodeCall) -> int:
    return len(call.inputs["image_tokens"]) + len(call.inputs["prompt"])


class RememberState:
    """pi0: the state as one more token, with the weights of the expert. It sees the context and itself."""

    def __init__(self, network: Pi05Network) -> None:
        self._network = network

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        return [AttentionStep(call.sequences.get(CONTEXT), 1, StepKind.BLOCK_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        states = torch.stack([call.inputs["normalised_state"] for call in calls])
        positions = torch.tensor(list(attention.positions), device=states.device)
        self._network.remember_state(states, positions, attention)
        return [NodeResult({"num_context": call.inputs["num_context"] + 1}) for call in calls]
