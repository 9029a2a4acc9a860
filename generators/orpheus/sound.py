"""Frames of codes to sound: in one go, or as they come, which gives the same samples bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from generators.orpheus.frames import Frame
from generators.orpheus.noise import Noise
from generators.orpheus.snac_config import DILATIONS, KERNEL, SnacConfig
from generators.orpheus.snac_net import Memory, Place, SnacNet

Kept = tuple[Tensor, ...]
"""What the layers keep from one frame to the next, one tensor each."""


def kept_shapes(config: SnacConfig) -> list[tuple[int, ...]]:
    """In the order in which the layers run."""
    around = KERNEL - 1
    shapes: list[tuple[int, ...]] = [(around, config.latent_size)]
    for block, rate in enumerate(config.decoder_rates):
        width = config.width(block + 1)
        shapes += [(1, rate * width), *((around * dilation, width) for dilation in DILATIONS)]
    return [*shapes, (around, config.width(len(config.decoder_rates)))]


class Sounds:
    """Has the weights and nothing of a request."""

    def __init__(self, net: SnacNet) -> None:
        self.config = net.config
        self._net = net
        self._device = next(net.parameters()).device
        self._shapes = kept_shapes(net.config)
        self._sizes = [math.prod(shape) for shape in self._shapes]

    def nothing_kept(self) -> Kept:
        """In front of the first frame."""
        return tuple(torch.zeros(shape, device=self._device) for shape in self._shapes)

    def pack(self, kept: Kept) -> Tensor:
        """As one tensor [K], to be carried from chunk to chunk."""
        return torch.cat([tensor.reshape(-1) for tensor in kept])

    def unpack(self, packed: Tensor) -> Kept:
        parts = packed.split(self._sizes)
        return tuple(part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))

    def num_steps(self, num_frames: int, final: bool) -> int:
        """For a sound of so many frames so far. Where they are all, the sound of the last takes some steps more."""
        return num_frames + self.config.num_frames_ahead if final and num_frames else num_frames

    def step(
        self, index: int, codes: Frame | None, kept: Kept, num_frames: int | None, noise: Noise
    ) -> tuple[Tensor, Kept]:
        """Take in frame `index`, None behind the last.

        Args:    num_frames: of the whole sound; None: not known yet, more than `index` in any case.
        Returns: the samples that are decided with it, [S] float32, and what is kept for the next.
        """
        place, memory = Place(index, num_frames, noise), Memory(kept)
        if codes is None:
            latents = torch.zeros(self.config.vq_strides[0], self.config.latent_size, device=self._device)
        else:
            latents = self._net.latents(torch.tensor(codes, device=self._device))
        samples = self._net.decoder(latents, place, memory)
        return self._decided(samples, index, num_frames), tuple(memory.written)

    def whole(self, frames: Sequence[Frame], seed: int = 0) -> Tensor:
        """[frames * frame_samples] float32: the sound of all frames at once."""
        noise, kept = Noise(seed), self.nothing_kept()
        pieces = [torch.zeros(0, device=self._device)]
        for index in range(self.num_steps(len(frames), final=True)):
            codes = frames[index] if index < len(frames) else None
            samples, kept = self.step(index, codes, kept, len(frames), noise)
            pieces.append(samples)
        return torch.cat(pieces)

    def _decided(self, samples: Tensor, index: int, num_frames: int | None) -> Tensor:
        """Without what would lie in front of the first frame or behind the last."""
        start = index * len(samples) - self.config.delay_samples
        stop = len(samples) if num_frames is None else num_frames * len(samples) - start
        return samples[max(0, -start) : max(0, min(len(samples), stop))]
