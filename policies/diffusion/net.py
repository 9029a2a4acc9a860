"""The networks of Diffusion Policy: what finds keypoints in an image, and the U-Net that takes noise off actions.

Parameters have the published names, less `diffusion.`; only those of the image network have torchvision's here.
Source: arXiv 2303.04137, section 3.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear
from mstar_rt.nn.resnet import WIDTHS, FrozenBatchNorm, ResNet18, feature_size, group_norm
from policies.diffusion.config import OUTPUT_GROUPS, DiffusionConfig, UnetConfig

LONGEST_PERIOD = 10000.0


class Eye(nn.Module):
    """Prepared images [N, 3, h, w] -> features [N, F]."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        height, width = config.vision.size_of(config.cameras[0])
        self.backbone = ResNet18(group_norm if config.vision.has_group_norm else FrozenBatchNorm)
        self.pool = Keypoints(feature_size(height), feature_size(width), config.vision.num_keypoints)
        self.out = Linear(config.vision.num_features, config.vision.num_features)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.out(self.pool(self.backbone(images)).flatten(1)))


class Keypoints(nn.Module):
    """Features [N, 512, h, w] -> where each keypoint is on the average, [N, K, 2], column and row from -1 to 1."""

    def __init__(self, height: int, width: int, num_keypoints: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(WIDTHS[-1], num_keypoints, 1)
        self.pos_grid = nn.Buffer(torch.zeros(height * width, 2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.nets(features).flatten(2).softmax(dim=-1) @ self.pos_grid


class Unet(nn.Module):
    """Noisy actions [B, H, A], the step that each is at [B] and its condition [B, C] -> what is predicted, [B, H, A].

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

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        embedded = self.diffusion_step_encoder(step_embedding(steps, self.step_dim).to(noisy.dtype))
        condition = functional.mish(torch.cat([embedded, condition], dim=-1))
        x, skipped = noisy.transpose(1, 2), []
        for down in self.down_modules:
            assert isinstance(down, Stage)
            kept = down(x, condition)
            skipped.append(kept)
            x = down.change(kept)
        x = self.mid_modules(x, condition)
        for up in self.up_modules:
            assert isinstance(up, Stage)
            x = up.change(up(torch.cat([x, skipped.pop()], dim=1), condition))
        return self.final_conv(x).transpose(1, 2)


class Stage(nn.ModuleList):
    """Two blocks at one horizon, and what halves or doubles it after them, if anything does."""

    def __init__(
        self, width_in: int, width: int, condition_size: int, unet: UnetConfig, change: nn.Module | None = None
    ) -> None:
        blocks = [ConditionedBlock(before, width, condition_size, unet) for before in (width_in, width)]
        super().__init__([*blocks] if change is None else [*blocks, change])

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x, condition), condition)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](x)


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
