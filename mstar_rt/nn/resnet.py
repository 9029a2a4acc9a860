"""The 18-layer residual network that robot policies see with, up to its last feature map.

Parameters have torchvision's names, as published weights do. Source: arXiv 1512.03385, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

BATCH_NORM_EPS = 1e-5
WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of two blocks each; the last is that of the feature map."""
NUM_LAYERS = 9
"""What comes before the first stage, and the blocks of all stages; they cost about the same."""
REDUCTION = 32
"""Pixels along a side that become one of the feature map, which is rounded up."""

NewNorm = Callable[[int], nn.Module]


def feature_size(pixels: int) -> int:
    """Length of the feature map's side whose image has `pixels`."""
    return -(-pixels // REDUCTION)


class FrozenBatchNorm(nn.Module):
    """Batch norm with the statistics of training, which never change."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(torch.ones(num_channels)), nn.Buffer(torch.zeros(num_channels))
        self.running_mean, self.running_var = nn.Buffer(torch.zeros(num_channels)), nn.Buffer(torch.ones(num_channels))

    def scale_and_shift(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm(x) = x * scale + shift, each [C]."""
        scale = self.weight * torch.rsqrt(self.running_var + BATCH_NORM_EPS)
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = self.scale_and_shift()
        return x * scale[:, None, None] + shift[:, None, None]


def group_norm(num_channels: int) -> nn.Module:
    """Groups of 16 channels, what Diffusion Policy puts in the place of batch norm. Source: arXiv 2303.04137."""
    return nn.GroupNorm(num_channels // 16, num_channels)


class ResNet18(nn.Module):
    """Images [N, 3, H, W] -> features [N, 512, ceil(H / 32), ceil(W / 32)]."""

    def __init__(self, norm: NewNorm = FrozenBatchNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], 1, norm)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], 2, norm)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], 2, norm)
        self.layer4 = _stage(WIDTHS[2], WIDTHS[3], 2, norm)

    def forward(self, images: torch.Tensor, layers: range | None = None) -> torch.Tensor:
        """`layers`: some of the NUM_LAYERS, which take and give what is between them; None: all."""
        x, blocks = images, [*self.layer1, *self.layer2, *self.layer3, *self.layer4]
        for index in range(NUM_LAYERS) if layers is None else layers:
            x = blocks[index - 1](x) if index else self._begun(x)
        return x

    def _begun(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(images)))
        return functional.max_pool2d(x, 3, stride=2, padding=1)

    def settle(self) -> ResNet18:
        """Prepare a network whose weights do not change any more, and which then takes images with channels last.

        Frozen norms become part of the convolutions before them, so that no feature map is read and written once more
        for nothing. Two images of 480 x 640 on one core took 778 ms as published, 659 ms folded, 461 ms channels last.
        """
        for owner, conv, norm in _pairs(self):
            frozen = owner.get_submodule(norm)
            if isinstance(frozen, FrozenBatchNorm):
                setattr(owner, conv, _folded(owner.get_submodule(conv), frozen))
                setattr(owner, norm, nn.Identity())
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        return self.requires_grad_(False)


class _Block(nn.Module):
    """Two 3x3 convolutions around which the input goes, halved in size by the first if `stride` is 2."""

    def __init__(self, width_in: int, width: int, stride: int, norm: NewNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        changes = stride != 1 or width_in != width
        self.downsample = (
            nn.Sequential(nn.Conv2d(width_in, width, 1, stride=stride, bias=False), norm(width)) if changes else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.downsample is None else self.downsample(x)
        return functional.relu(self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) + around)


def _stage(width_in: int, width: int, stride: int, norm: NewNorm) -> nn.Sequential:
    return nn.Sequential(_Block(width_in, width, stride, norm), _Block(width, width, 1, norm))


def _pairs(network: ResNet18) -> Iterator[tuple[nn.Module, str, str]]:
    """Every convolution with its norm: who has them, and under which names."""
    yield network, "conv1", "bn1"
    for module in network.modules():
        if isinstance(module, _Block):
            yield module, "conv1", "bn1"
            yield module, "conv2", "bn2"
            if module.downsample is not None:
                yield module.downsample, "0", "1"


def _folded(conv: nn.Module, norm: FrozenBatchNorm) -> nn.Conv2d:
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is None, "these convolutions have no bias of their own"
    scale, shift = norm.scale_and_shift()
    folded = nn.utils.skip_init(
        nn.Conv2d, conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, bias=True
    )
    assert folded.bias is not None
    folded.weight = nn.Parameter(conv.weight * scale[:, None, None, None], requires_grad=False)
    folded.bias = nn.Parameter(shift.clone(), requires_grad=False)
    return folded
