"""Model predictive path integral control on the candidates of a search: every candidate counts, by its cost.

Where the cross-entropy method takes the plain mean of the elites and narrows its Gaussian, this takes their mean
weighted by exp(-cost / temperature) and samples as widely in the next iteration.
Source: Williams et al., "Information theoretic MPC for model-based reinforcement learning", ICRA 2017.
"""

from __future__ import annotations

import torch

from world_models.planning import cem


def weights_of(costs: torch.Tensor, temperature: float) -> torch.Tensor:
    """costs [E] -> weights [E] that sum to 1; the cheapest counts most, at temperature 0 it alone would."""
    return torch.softmax((costs.min() - costs) / temperature, dim=0)


def weighted_spread(chosen: torch.Tensor, weights: torch.Tensor) -> cem.Gaussian:
    """Weighted mean and std of action sequences [E, H, 7]."""
    searched, shares = cem.without_rotation(chosen), weights[:, None, None]
    mean = (shares * searched).sum(dim=0)
    return cem.Gaussian(mean, (shares * (searched - mean).square()).sum(dim=0).sqrt())


def moved(before: cem.Gaussian, spread: cem.Gaussian, settings: cem.CemSettings) -> cem.Gaussian:
    """The next Gaussian: the mean follows, the std stays."""
    keep = cem.momentum(settings.momentum_mean, settings.momentum_mean_gripper)
    return cem.Gaussian(spread.mean * (1.0 - keep) + before.mean * keep, before.std)
