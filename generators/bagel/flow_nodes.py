"""The loop from noise to an image: a velocity seen from each context, one step along the guided one, and a report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from generators.bagel.backbone import NUM_BORDERS, Backbone
from generators.bagel.contexts import IS_MAIN, Positions, read_positions
from generators.bagel.guidance import branches_at
from generators.bagel.image_nodes import Pictures
from generators.bagel.renormalization import guided
from generators.bagel.schedule import times_of
from generators.bagel.stateless import Stateless
from generators.bagel.walks import (
    FLOW_WITHOUT_IMAGE,
    FLOW_WITHOUT_TEXT,
    MAIN,
    WITHOUT_IMAGE,
    WITHOUT_TEXT,
)
from mstar_rt.errors import Internal, InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind

CONTEXTS = {FLOW_WITHOUT_TEXT: WITHOUT_TEXT, FLOW_WITHOUT_IMAGE: WITHOUT_IMAGE}
"""Which context the uses of `flow` look from; all others look from main."""


class Noise(Stateless):
    """latent [rows, columns, D] float32, N(0, 1), by the request's seed."""

    def __init__(self, latent_dim: int, device: str) -> None:
        self._latent_dim = latent_dim
        self._device = device

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        shape = (*call.inputs["size"].tolist(), self._latent_dim)
        return {"latent": torch.randn(shape, generator=call.generator()).to(self._device)}


class Flow:
    """The velocity of latents, seen from a context; empty in a step that has no use for that one.

    Uses of the node that look from different contexts, and requests, share a step if their images are of one size.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def batch_key(self, call: NodeCall) -> Hashable:
        return _is_active(call), tuple(call.inputs["latent"].shape[:2])

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        if not _is_active(call):
            return []
        rows, columns = call.inputs["latent"].shape[:2]
        table = call.sequences.get(_context(call))
        return [AttentionStep(table, rows * columns + NUM_BORDERS, StepKind.TRANSIENT_BLOCK)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        if not _is_active(calls[0]):
            return [NodeResult({"velocity": torch.empty(0)}) for _ in calls]
        device = self._backbone.device
        latents = torch.stack([call.inputs["latent"].to(device) for call in calls])
        times = torch.tensor([times_of(call.params)[call.iteration[-1]] for call in calls], device=device)
        positions = [_positions(call).of(_context(call)) for call in calls]
        grid = latents.shape[1], latents.shape[2]
        x = self._backbone.latents_in(latents.flatten(1, 2), times, grid)
        x = self._backbone.read_latents(x, torch.tensor(positions, device=device), max(positions), attention)
        velocities = self._backbone.velocity(x).unflatten(1, grid)
        return [NodeResult({"velocity": velocity}) for velocity in velocities]


def _context(call: NodeCall) -> str:
    return CONTEXTS.get(call.node, MAIN)


def _positions(call: NodeCall) -> Positions:
    return read_positions(call.inputs["positions"])


def _is_active(call: NodeCall) -> bool:
    """Whether the network is run for that use in this step.

    Raises:
        Internal: it should be, and its context is not there.
        InvalidArgument: guidance away from what is without the image has nothing to go by.
    """
    label, positions = _context(call), _positions(call)
    if label == MAIN:
        return True
    branches = branches_at(call.params, call.iteration[-1])
    if not (branches.without_text if label == WITHOUT_TEXT else branches.without_image):
        return False
    if label == WITHOUT_IMAGE and positions.without_image == IS_MAIN:
        if not branches.without_text:
            raise InvalidArgument(
                f"image_guidance is {call.params['image_guidance']:g}, but there is neither an image nor a plan, and "
                "text_guidance is 1, so it would change nothing: leave it at 1"
            )
        return False
    positions.of(label)
    if label not in call.sequences:
        raise Internal(f"the context {label!r} did not come to where {call.node!r} runs")
    return True


class Guide(Stateless):
    """One step along the guided velocity, on to the next time.

    Where the context without images is main itself, its velocity is that of main.
    """

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        step, times = call.iteration[-1], times_of(call.params)
        branches = branches_at(call.params, step)
        velocity, latent = call.inputs["velocity"], call.inputs["latent"]
        without_text, without_image = call.inputs["velocity_without_text"], call.inputs["velocity_without_image"]
        if branches.without_text != (without_text.numel() > 0):
            raise Internal(f"guidance by text is {branches.without_text} in step {step}, its velocity says otherwise")
        towards = guided(
            velocity,
            without_text if branches.without_text else None,
            (without_image if without_image.numel() else velocity) if branches.without_image else None,
            call.params,
        )
        return {"denoised": latent - towards * (times[step] - times[step + 1])}


class Report(Stateless):
    """How many steps are done and, after every so many, what it looks like and the latents themselves."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures

    def batch_key(self, call: NodeCall) -> Hashable:
        return _is_due(call, "preview_every")  # a picture takes long, what has none need not wait for it

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        denoised = call.inputs["denoised"]
        with_preview, with_latents = _is_due(call, "preview_every"), _is_due(call, "latents_every")
        return {
            "denoised": denoised,
            "step": torch.tensor(call.iteration[-1] + 1),
            "preview": self._pictures.of(denoised) if with_preview else torch.empty(0, 0, 3, dtype=torch.uint8),
            "latents": denoised.flatten(0, 1) if with_latents else torch.empty(0, denoised.shape[-1]),
        }


def _is_due(call: NodeCall, option: str) -> bool:
    every = call.params[option]
    return every > 0 and (call.iteration[-1] + 1) % every == 0
