"""Images into contexts and out of latents: the encoders, what reads what they give, and the way back to pixels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from generators.bagel.autoencoder import Autoencoder, from_tokens, to_tokens
from generators.bagel.backbone import NUM_BORDERS, Backbone
from generators.bagel.config import BagelConfig
from generators.bagel.contexts import Positions, read_positions
from generators.bagel.options import check_drawing
from generators.bagel.processor import ImageProcessor, to_image
from generators.bagel.stateless import Stateless
from generators.bagel.vision import Vision
from generators.bagel.walks import MAIN
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind

CLEAN = 0.0
"""The time of latents that have no noise in them."""


class EncodeLatents(Stateless):
    """An image as latents: the mean of what the autoencoder encodes it to, or a draw from it if asked for."""

    def __init__(self, autoencoder: Autoencoder, processor: ImageProcessor, config: BagelConfig) -> None:
        self._autoencoder = autoencoder
        self._processor = processor
        self._config = config

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        check_drawing(call.params, self._config)
        pixels = self._processor.latent_pixels(call.inputs["image"])
        moments = self._autoencoder.encode(pixels)
        noise = None
        if call.params.get("sample_latents", False):
            noise = torch.randn(moments.mean.shape, generator=call.generator()).to(moments.mean.device)
        latents = self._autoencoder.latents(moments, noise)
        patch = self._config.latent_patch
        size = latents.shape[2] // patch, latents.shape[3] // patch
        return {"image_latents": to_tokens(latents, patch)[0].unflatten(0, size), "size": torch.tensor(size)}


class EncodeVision(Stateless):
    """An image as the vision tower sees it."""

    def __init__(self, vision: Vision, processor: ImageProcessor) -> None:
        self._vision = vision
        self._processor = processor

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        return {"image_tokens": self._vision(self._processor.vision_pixels(call.inputs["image"]))[0]}


class ReadLatents:
    """Latents of an image to be changed, the first thing in main: a block whose tokens all see each other."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def batch_key(self, call: NodeCall) -> Hashable:
        return tuple(call.inputs["image_latents"].shape[:2])

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        rows, columns = call.inputs["image_latents"].shape[:2]
        return [AttentionStep(call.sequences.get(MAIN), rows * columns + NUM_BORDERS, StepKind.BLOCK_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        device = self._backbone.device
        latents = torch.stack([call.inputs["image_latents"].to(device) for call in calls])
        times = torch.full((len(calls),), CLEAN, device=device)
        x = self._backbone.latents_in(latents.flatten(1, 2), times, (latents.shape[1], latents.shape[2]))
        self._backbone.read_latents(x, torch.zeros(len(calls), dtype=torch.int64, device=device), 0, attention)
        return [NodeResult({"positions": Positions(main=1).tensor()}) for _ in calls]


class ReadVision:
    """What is seen of an image into main, as a block, behind its latents if they are there."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        num_tokens = len(call.inputs["image_tokens"]) + NUM_BORDERS
        return [AttentionStep(call.sequences.get(MAIN), num_tokens, StepKind.BLOCK_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        backbone = self._backbone
        # An earlier request of the session may have left positions, but no context.
        starts = [
            read_positions(call.inputs["positions"]).main if num_stored else 0
            for call, num_stored in zip(calls, attention.positions, strict=True)
        ]
        blocks = [
            torch.cat([backbone.borders[:1], call.inputs["image_tokens"].to(backbone.borders), backbone.borders[1:]])
            for call in calls
        ]
        lengths = torch.tensor([len(block) for block in blocks])
        positions = torch.tensor(starts).repeat_interleave(lengths).to(backbone.device)
        backbone.read(torch.cat(blocks), positions, max(starts), attention)
        return [NodeResult({"positions": Positions(main=start + 1).tensor()}) for start in starts]


class DecodeImage(Stateless):
    """Latents to pixels."""

    def __init__(self, autoencoder: Autoencoder, config: BagelConfig) -> None:
        self._pictures = Pictures(autoencoder, config)

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        return {"image": self._pictures.of(call.inputs["denoised"])}


class Pictures:
    """What latents look like. One at a time: so a picture is the same whoever shares the step."""

    def __init__(self, autoencoder: Autoencoder, config: BagelConfig) -> None:
        self._autoencoder = autoencoder
        self._patch = config.latent_patch

    def of(self, latents: torch.Tensor) -> torch.Tensor:
        """latents [rows, columns, D] -> uint8 [H, W, 3]."""
        grid = latents.shape[0], latents.shape[1]
        tokens = latents.flatten(0, 1)[None].to(next(self._autoencoder.parameters()).device)
        return to_image(self._autoencoder.decode(from_tokens(tokens, grid, self._patch)))
