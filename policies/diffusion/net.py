"""The networks of Diffusion Policy: what finds keypoints in an image, and the U-Net that takes noise off actions.

Parameters have the published names, less `diffusion.`; only those of the image network have torchvision's here.
Source: arXiv 2303.04137, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear
from mstar_rt.nn.resnet import NUM_LAYERS, WIDTHS, FrozenBatchNorm, ResNet18, feature_size, group_norm
from policies.diffusion.config import OUTPUT_GROUPS, DiffusionConfig, UnetConfig

LONGEST_PERIOD = 10000.0
BLOCKS_PER_STAGE = 2


class Eye(nn.Module):
    """Prepared images [N, 3, h, w] -> features [N, F]. `num_layers` are passed one after the other; what is between two
    of them is a tensor [N, ...], too."""

    num_layers = NUM_LAYERS

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        height, width = config.vision.size_of(config.cameras[0])
        self.backbone = ResNet18(group_norm if config.vision.has_group_norm else FrozenBatchNorm)
        self.pool = Keypoints(feature_size(height), feature_size(width), config.vision.num_keypoints)
        self.out = Linear(config.vision.num_features, config.vision.num_features)

    def forward(self, images: torch.Tensor, layers: range) -> torch.Tensor:
        x = self.backbone(images, layers)
        if layers.stop < self.num_layers:
            return x
        return functional.relu(self.out(self.pool(x).flatten(1)))


class Keypoints(nn.Module):
    """Features [N, 512, h, w] -> where each keypoint is on the average, [N, K, 2], column and row from -1 to 1."""

    def __init__(self, height: int, width: int, num_keypoints: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(WIDTHS[-1], num_keypoints, 1)
        self.pos_grid = nn.Buffer(torch.zeros(height * width, 2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.nets(features).flatten(2).softmax(dim=-1) @ self.pos_grid


class Between(NamedTuple):
    """Where some requests stand between two blocks of a U-Net: x [B, C, T], and what its second half is yet to see
    again, [B, C', T'] each."""

    x: torch.Tensor
    skipped: tuple[torch.Tensor, ...] = ()

    def each(self) -> list[Between]:
        """Those of every request, as a batch of one."""
        split = [tensor.split(1) for tensor in (self.x, *self.skipped)]
        return [Between(x, tuple(skipped)) for x, *skipped in zip(*split, strict=True)]

    @staticmethod
    def joined(parts: Sequence[Between]) -> Between:
        x, *skipped = (torch.cat(tensors) for tensors in zip(*((part.x, *part.skipped) for part in parts), strict=True))
        return Between(x, tuple(skipped))


class Unet(nn.Module):
    """Noisy actions [B, H, A], the step that each is at [B] and its condition [B, C] -> what is predicted, [B, H, A]:
    `begun`, `through` all blocks, `predicted`.

    The horizon is halved between the stages of `down_modules` and doubled again after each of `up_modules`.
    """

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        unet, size = config.unet, config.features.action_size
        self.step_dim = unet.step_dim
        step_layers = Linear(unet.step_dim, 4 * unet.step_dim), nn.Mish(), Linear(4 * unet.step_dim, unet.step_dim)
        self.diffusion_step_encoder = nn.Sequential(nn.Identity(), *step_layers)
        condition_size, widths = unet.step_dim + config.condition_size, unet.widths
        halving = [*(nn.Conv1d(width, width, 3, 2, 1) for width in widths[:-1]), nn.Identity()]
        self.down_modules = nn.ModuleList(
            Stage(before, width, condition_size, unet, halve)
            for before, width, halve in zip((size, *widths[:-1]), widths, halving, strict=True)
        )
        self.mid_modules = Stage(widths[-1], widths[-1], condition_size, unet)
        self.up_modules = nn.ModuleList(
            Stage(2 * wide, width, condition_size, unet, nn.ConvTranspose1d(width, width, 4, 2, 1))
            for wide, width in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        last = ConvBlock(widths[0], widths[0], unet.kernel_size, OUTPUT_GROUPS)
        self.final_conv = nn.Sequential(last, nn.Conv1d(widths[0], size, 1))

    @property
    def num_blocks(self) -> int:
        return BLOCKS_PER_STAGE * (len(self.down_modules) + 1 + len(self.up_modules))

    def begun(self, noisy: torch.Tensor) -> Between:
        return Between(noisy.transpose(1, 2))

    def through(self, state: Between, steps: torch.Tensor, condition: torch.Tensor, blocks: range) -> Between:
        """Some of the `num_blocks`."""
        embedded = self.diffusion_step_encoder(step_embedding(steps, self.step_dim).to(condition.dtype))
        condition = functional.mish(torch.cat([embedded, condition], dim=-1))
        for index in blocks:
            state = self._passed(state, *divmod(index, BLOCKS_PER_STAGE), condition)
        return state

    def predicted(self, state: Between) -> torch.Tensor:
        """[B, H, A], after the last block."""
        return self.final_conv(state.x).transpose(1, 2)

    def _passed(self, state: Between, number: int, block: int, condition: torch.Tensor) -> Between:
        """Through one block of a stage, and what lies before its first and behind its last one."""
        x, skipped, num_down = state.x, state.skipped, len(self.down_modules)
        stage: Any = [*self.down_modules, self.mid_modules, *self.up_modules][number]
        if number > num_down and block == 0:
            x, skipped = torch.cat([x, skipped[-1]], dim=1), skipped[:-1]
        x = stage[block](x, condition)
        if block + 1 < BLOCKS_PER_STAGE or number == num_down:
            return Between(x, skipped)
        return Between(stage[BLOCKS_PER_STAGE](x), (*skipped, x) if number < num_down else skipped)


class Stage(nn.ModuleList):
    """The blocks at one horizon, and what halves or doubles it after them, if anything does."""

    def __init__(
        self, width_in: int, width: int, condition_size: int, unet: UnetConfig, change: nn.Module | None = None
    ) -> None:
        blocks = [ConditionedBlock(before, width, condition_size, unet) for before in (width_in, width)]
        super().__init__([*blocks] if change is None else [*blocks, change])


class ConvBlock(nn.Module):
    """Convolution over time, group norm, Mish: [B, C, T] -> [B, C', T]."""

    def __init__(self, width_in: int, width: int, kernel_size: int, num_groups: int) -> None:
        super().__init__()
        conv = nn.Conv1d(width_in, width, kernel_size, padding=kernel_size // 2)
        self.block = nn.Sequential(conv, nn.GroupNorm(num_groups, width), nn.Mish())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


class ConditionedBlock(nn.Module):
    """Two `ConvBlock`s around which the input goes; the condition (after a Mish, which all blocks share) shifts and
    scales every channel between them."""

    def __init__(self, width_in: int, width: int, condition_size: int, unet: UnetConfig) -> None:
        super().__init__()
        self.scales = unet.scales
        self.conv1 = ConvBlock(width_in, width, unet.kernel_size, unet.num_groups)
        self.cond_encoder = nn.Sequential(nn.Identity(), Linear(condition_size, 2 * width if unet.scales else width))
        self.conv2 = ConvBlock(width, width, unet.kernel_size, unet.num_groups)
        self.residual_conv = nn.Conv1d(width_in, width, 1) if width_in != width else nn.Identity()

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        film, hidden = self.cond_encoder(condition)[..., None], self.conv1(x)
        if self.scales:
            scale, shift = film.chunk(2, dim=1)
            hidden = scale * hidden + shift
        else:
            hidden = hidden + film
        return self.conv2(hidden) + self.residual_conv(x)


def step_embedding(steps: torch.Tensor, dim: int) -> torch.Tensor:
    """Sines, then cosines, of steps [B], of geometrically falling frequency: [B, dim] float32."""
    half = dim // 2
    places = torch.arange(half, device=steps.device, dtype=torch.float32)
    angles = steps[:, None] * torch.exp(places * (-math.log(LONGEST_PERIOD) / (half - 1)))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
