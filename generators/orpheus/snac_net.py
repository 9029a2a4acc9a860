"""The SNAC decoder, one frame at a time.

Codes become latents, four blocks bring those to the rate of the sound. Nothing here is causal: each convolution looks
ahead as far as back. So each is as far behind its input as it looks ahead, and keeps the end of what it has read for
the next frame. A frame is computed once, whatever is streamed, and there is no other way through the network: every
step multiplies matrices of the same shapes, so the sound does not depend, bit for bit, on how it was cut up.

Positions are absolute, at the rate of the layer. Before the first one and after the last one each layer reads zeros, as
with padding; what a layer computes there is put to zero by whoever reads it.

All is [positions, channels], float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generators.orpheus.noise import Noise
from generators.orpheus.snac_config import DILATIONS, KERNEL, SnacConfig


@dataclass(frozen=True)
class Place:
    """Which frame a step takes in, of how many (None: not known yet, and `frame` is not the last)."""

    frame: int
    num_frames: int | None
    noise: Noise

    def masked(self, x: Tensor, delay: int) -> Tensor:
        """`x` [T, C], `delay` positions behind the frame, with zeros at positions that there are not. In place."""
        start, size = self.frame * len(x) - delay, len(x)
        if start < 0:
            x[:-start] = 0
        if self.num_frames is not None and start + size > self.num_frames * size:
            x[max(0, self.num_frames * size - start) :] = 0
        return x


class Memory:
    """What the layers keep for the next frame, in the order in which they run: read by `last`, written by `keep`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._read, self._written = iter(tensors), list[Tensor]()

    def behind(self, x: Tensor) -> Tensor:
        """`x` behind what was kept, and as many of its last positions are kept."""
        last = next(self._read)
        joined = torch.cat((last, x))
        self._written.append(joined[len(joined) - len(last) :])
        return joined

    def swap(self, kept: Tensor) -> Tensor:
        """What was kept, for what is to be kept."""
        self._written.append(kept)
        return next(self._read)

    @property
    def written(self) -> list[Tensor]:
        return self._written


class Pointwise(nn.Module):
    """A convolution of one position."""

    def __init__(self, size_in: int, size_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in, 1))
        self.bias = nn.Parameter(torch.empty(size_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[..., 0], self.bias)


class Depthwise(nn.Module):
    """A convolution of each channel alone: [T + 6 * dilation, C] -> [T, C]."""

    def __init__(self, size: int, dilation: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, 1, KERNEL))
        self.bias = nn.Parameter(torch.empty(size))
        self._dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        length, taps = len(x) - (KERNEL - 1) * self._dilation, self._taps
        out = torch.addcmul(self.bias, x[:length], taps[0])
        for index in range(1, KERNEL):
            start = index * self._dilation
            out.addcmul_(x[start : start + length], taps[index])
        return out

    def settle(self) -> None:
        self._taps = self.weight[:, 0].t().contiguous()


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha: zero where x is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, size, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self._scale).square_().mul_(self._inverse).add_(x)

    def settle(self) -> None:
        self._scale = self.alpha[0, :, 0].contiguous()
        self._inverse = (self._scale + 1e-9).reciprocal()


class Upsample(nn.Module):
    """A transposed convolution over twice its rate: a position adds to its own `rate` outputs and to the next ones."""

    def __init__(self, size_in: int, size_out: int, rate: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_in, size_out, 2 * rate))
        self.bias = nn.Parameter(torch.empty(size_out))
        self.rate, self.size_out = rate, size_out

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        halves = F.linear(x, self._matrix).view(len(x), 2, self.rate * self.size_out)
        late = memory.swap(halves[-1:, 1])
        out = halves[:, 0] + torch.cat((late, halves[:-1, 1]))
        return out.view(len(x) * self.rate, self.size_out).add_(self.bias)

    def settle(self) -> None:
        """As one matrix, whose rows are ordered as the outputs come: half, position, channel."""
        size_in = len(self.weight)
        halves = self.weight.view(size_in, self.size_out, 2, self.rate).permute(2, 3, 1, 0)
        self._matrix = halves.reshape(-1, size_in).contiguous()


class NoiseLayer(nn.Module):
    def __init__(self, size: int, index: int) -> None:
        super().__init__()
        self.linear = Pointwise(size, size, bias=False)
        self._index = index

    def forward(self, x: Tensor, place: Place, delay: int) -> Tensor:
        noise = place.noise.span(self._index, place.frame * len(x) - delay, len(x), len(x)).to(x.device)
        return torch.addcmul(x, noise, self.linear(x))


class ResidualUnit(nn.Module):
    def __init__(self, size: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList([Snake(size), Depthwise(size, dilation), Snake(size), Pointwise(size, size)])
        self.ahead = dilation * (KERNEL // 2)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """x [T, C] -> [T, C], `ahead` positions further behind."""
        around, length = memory.behind(x), len(x)
        snake, depthwise, second_snake, pointwise = self.block
        y = pointwise(second_snake(depthwise(snake(around))))
        return y.add_(around[self.ahead : self.ahead + length])


class Block(nn.Module):
    def __init__(self, size_in: int, size_out: int, rate: int, index: int, noise: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [Snake(size_in), Upsample(size_in, size_out, rate)]
        if noise:
            layers.append(NoiseLayer(size_out, index))
        self.block = nn.ModuleList([*layers, *(ResidualUnit(size_out, dilation) for dilation in DILATIONS)])
        self._rate = rate

    def forward(self, x: Tensor, delay: int, place: Place, memory: Memory) -> tuple[Tensor, int]:
        """x [T, C], `delay` positions behind -> [T * rate, C / 2], and how many those are behind."""
        snake, upsample, *others = self.block
        x = upsample(snake(place.masked(x, delay)), memory)
        delay = delay * self._rate + math.ceil(self._rate / 2)
        for layer in others:
            if isinstance(layer, NoiseLayer):
                x = layer(x, place, delay)
            else:
                assert isinstance(layer, ResidualUnit)
                x = layer(place.masked(x, delay), memory)
                delay += layer.ahead
        return x, delay


class LastConvolution(nn.Module):
    """All channels to the sound: [T + 6, C] -> [T]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, size, KERNEL))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        length, products = len(x) - (KERNEL - 1), F.linear(x, self._rows)
        out = products[:length, 0] + self.bias
        for index in range(1, KERNEL):
            out += products[index : index + length, index]
        return out

    def settle(self) -> None:
        self._rows = self.weight[0].t().contiguous()


class Codebook(nn.Module):
    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.codebook = nn.Embedding(config.codebook_size, config.codebook_dim)
        self.out_proj = Pointwise(config.codebook_dim, config.latent_size)

    def forward(self, codes: Tensor) -> Tensor:
        return self.out_proj(self.codebook(codes))


class Quantizer(nn.Module):
    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(config) for _ in config.vq_strides)


class Decoder(nn.Module):
    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        rates = config.decoder_rates
        self.model = nn.ModuleList(
            [
                Depthwise(config.latent_size),
                Pointwise(config.latent_size, config.decoder_dim),
                *(
                    Block(config.width(index), config.width(index + 1), rate, index, config.noise)
                    for index, rate in enumerate(rates)
                ),
                Snake(config.width(len(rates))),
                LastConvolution(config.width(len(rates))),
            ]
        )

    def forward(self, latents: Tensor, place: Place, memory: Memory) -> Tensor:
        """latents [T, C] of one frame -> [samples of a frame], as far behind it as the network looks ahead."""
        first, widen, *blocks, snake, last = self.model
        x, delay = widen(first(memory.behind(place.masked(latents, 0)))), KERNEL // 2
        for block in blocks:
            x, delay = block(x, delay, place, memory)
        return torch.tanh(last(snake(memory.behind(place.masked(x, delay)))))


class SnacNet(nn.Module):
    """Parameters are named as published, less the encoder and with the weight norms multiplied in."""

    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = Quantizer(config)
        self.decoder = Decoder(config)
        self._slots = [
            [slot for slot, of in enumerate(config.slots) if of == codebook]
            for codebook in range(len(config.vq_strides))
        ]

    def latents(self, codes: Tensor) -> Tensor:
        """codes [num_slots] of one frame, int64 -> [vq_strides[0], latent_size]."""
        latents = torch.zeros((), device=codes.device)
        for codebook, slots, stride in zip(self.quantizer.quantizers, self._slots, self.config.vq_strides, strict=True):
            latents = latents + codebook(codes[slots]).repeat_interleave(stride, dim=0)
        return latents

    def settle(self) -> SnacNet:
        """To be called once the weights are there."""
        for module in self.modules():
            if isinstance(module, Depthwise | Snake | Upsample | LastConvolution):
                module.settle()
        return self
