"""The cross-entropy method over (x, y, z, gripper) action sequences, as pure functions of tensors.

The search keeps a Gaussian per horizon step. Each iteration draws candidates, has the world model imagine their ends,
and refits the Gaussian to the candidates that end nearest the goal. Nothing is kept between calls: the random state is
a tensor that goes in and comes out, so the iteration can be a walk. For the same settings and noise the actions are
those of the public planner. Source: arXiv 2506.09985, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from world_models.planning.options import NUM_SEARCH_DIMS
from world_models.planning.tree import rows_at

GRIPPER_DIM = 3
GRIPPER_LIMIT = 0.75
GRIPPER_DEADBAND = 0.25
GRIPPER_CLOSED = 1.0


@dataclass(frozen=True)
class CemSettings:
    """How to search.

    `pins` maps a search dimension (0..3) to the value it always takes. From horizon step `close_gripper` on the gripper
    closes, whatever was drawn. Momentum is the share of the old mean or std that a refit keeps. `branching` are the
    branches per step of a tree of candidates (see tree.py), () for candidates that are drawn one by one.
    """

    num_samples: int = 400
    num_elites: int = 10
    max_norm: float = 0.05
    momentum_mean: float = 0.15
    momentum_std: float = 0.15
    momentum_mean_gripper: float = 0.15
    momentum_std_gripper: float = 0.15
    pins: Mapping[int, float] = field(default_factory=dict)
    close_gripper: int | None = None
    branching: tuple[int, ...] = ()
    include_mean: bool = False
    keep_elites: bool = False
    temperature: float | None = None


class Bounds(NamedTuple):
    """The box of the searched dimensions, [4] each: metres, metres, metres, gripper."""

    low: torch.Tensor
    high: torch.Tensor


class Gaussian(NamedTuple):
    """Mean and standard deviation per horizon step, both [H, 4]: metres, metres, metres, gripper."""

    mean: torch.Tensor
    std: torch.Tensor


def seeded_rng_state(seed: int) -> torch.Tensor:
    """The random state, uint8 [5056], from which `draw_noise` starts."""
    return torch.Generator().manual_seed(seed).get_state()


def draw_noise(
    rng_state: torch.Tensor, num_samples: int, horizon: int, branching: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal noise [H, S, 4] and the random state after it; in a tree, candidates of one branch share it.

    One draw per horizon step, in order: a single draw of all of them would give other numbers. Always on the CPU, so
    that a plan does not depend on the device.
    """
    generator = torch.Generator()
    generator.set_state(rng_state)
    rows = [rows_at(step, num_samples, branching) for step in range(horizon)]
    steps = [torch.randn((num_rows, NUM_SEARCH_DIMS), generator=generator) for num_rows in rows]
    if branching:
        steps = [noise.repeat_interleave(num_samples // len(noise), dim=0) for noise in steps]
    return torch.stack(steps), generator.get_state()


def default_bounds(settings: CemSettings) -> Bounds:
    """`max_norm` per axis and 0.75 for the gripper, either way."""
    high = torch.tensor([settings.max_norm] * 3 + [GRIPPER_LIMIT])
    return Bounds(-high, high)


def initial_gaussian(
    horizon: int, settings: CemSettings, warm_mean: torch.Tensor | None = None, bounds: Bounds | None = None
) -> Gaussian:
    """Zero mean, or a warm start's [H, 4]; pinned dimensions at their pins; std `max_norm` per axis, gripper 1.

    With the client's own bounds a cold mean is their middle, and the std shrinks as they do.
    """
    middle, std = torch.zeros(NUM_SEARCH_DIMS), torch.tensor([settings.max_norm] * 3 + [1.0])
    if bounds is not None:
        default = default_bounds(settings)
        middle = (bounds.low + bounds.high) / 2
        std = std * ((bounds.high - bounds.low) / (default.high - default.low))
    mean = middle.repeat(horizon, 1) if warm_mean is None else warm_mean.clone()
    for dimension, value in settings.pins.items():
        mean[:, dimension] = value
    return Gaussian(mean, std.repeat(horizon, 1))


def shifted(mean: torch.Tensor) -> torch.Tensor:
    """The mean [H, 4] of a plan whose first action was executed, as a start for the next: its new last step rests."""
    return torch.cat([mean[1:], torch.zeros_like(mean[:1])])


def fitted_to(mean: torch.Tensor, horizon: int) -> torch.Tensor:
    """A mean for another horizon: cut, or continued at rest."""
    rest = mean.new_zeros(max(0, horizon - len(mean)), NUM_SEARCH_DIMS)
    return torch.cat([mean[:horizon], rest])


def within_reach(mean: torch.Tensor, settings: CemSettings, bounds: Bounds | None = None) -> torch.Tensor:
    """A mean [H, 4] of a search that reached farther, as a start for one within `bounds` (unset: `max_norm`)."""
    if bounds is not None:
        return mean.clamp(bounds.low, bounds.high)
    return torch.cat([mean[:, :3].clamp(-settings.max_norm, settings.max_norm), mean[:, 3:]], dim=-1)


def candidates(
    gaussian: Gaussian, noise: torch.Tensor, settings: CemSettings, bounds: Bounds | None = None
) -> torch.Tensor:
    """Candidate action sequences.

    Args:    noise [H, S, 4]; bounds, unset: `default_bounds`.
    Returns: [S, H, 7], within the bounds, then pinned, then closed; no rotation. With `include_mean` the first is the
             mean.
    """
    if settings.include_mean:
        noise = _without_noise_on_the_first(noise, settings.branching)
    low, high = bounds or default_bounds(settings)
    searched = (noise * gaussian.std[:, None] + gaussian.mean[:, None]).clamp(low, high)
    for dimension, value in settings.pins.items():
        searched[..., dimension] = value
    if settings.close_gripper is not None:
        searched[settings.close_gripper :, :, GRIPPER_DIM] = GRIPPER_CLOSED
    return with_rotation(searched).transpose(0, 1)


def elites_of(costs: torch.Tensor, settings: CemSettings) -> torch.Tensor:
    """Indices of the cheapest candidates, cheapest first: costs [S] -> [num_elites]."""
    return costs.topk(settings.num_elites, largest=False).indices


def spread_of(chosen: torch.Tensor) -> Gaussian:
    """Mean and unbiased std of action sequences [E, H, 7]."""
    searched = without_rotation(chosen)
    return Gaussian(searched.mean(dim=0), searched.std(dim=0))


def blended(before: Gaussian, spread: Gaussian, settings: CemSettings) -> Gaussian:
    """The next Gaussian: what momentum keeps of the one before, and the rest of the elites' spread."""
    keep_mean = momentum(settings.momentum_mean, settings.momentum_mean_gripper)
    keep_std = momentum(settings.momentum_std, settings.momentum_std_gripper)
    return Gaussian(
        spread.mean * (1.0 - keep_mean) + before.mean * keep_mean,
        spread.std * (1.0 - keep_std) + before.std * keep_std,
    )


def finished_plan(mean: torch.Tensor) -> torch.Tensor:
    """The answer [H, 7] of a search that ended at `mean` [H, 4]: gripper moves inside the deadband become none."""
    gripper = mean[..., 3:]
    still = torch.where(gripper.abs() < GRIPPER_DEADBAND, torch.zeros_like(gripper), gripper)
    return with_rotation(torch.cat([mean[..., :3], still], dim=-1))


def with_rotation(searched: torch.Tensor) -> torch.Tensor:
    """[..., 4] -> [..., 7] with zero rotation between translation and gripper."""
    zeros = searched.new_zeros(*searched.shape[:-1], 3)
    return torch.cat([searched[..., :3], zeros, searched[..., 3:]], dim=-1)


def without_rotation(actions: torch.Tensor) -> torch.Tensor:
    """[..., 7] -> [..., 4]."""
    return torch.cat([actions[..., :3], actions[..., 6:]], dim=-1)


def _without_noise_on_the_first(noise: torch.Tensor, branching: Sequence[int]) -> torch.Tensor:
    """Noise [H, S, 4] with which the first candidate is the mean, and in a tree its branch at each step too."""
    still, num_samples = noise.clone(), noise.shape[1]
    for step in range(len(noise)):
        still[step, : num_samples // rows_at(step, num_samples, branching)] = 0.0
    return still


def momentum(translation: float, gripper: float) -> torch.Tensor:
    """Shares kept, [4]."""
    return torch.tensor([translation, translation, translation, gripper])
