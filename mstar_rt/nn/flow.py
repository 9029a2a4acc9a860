"""Flow matching: the embedding of the flow time, and the schedule by which noise becomes data.

Time runs from 1 (noise) to 0 (data), and the network's velocity is noise less data.
"""

from __future__ import annotations

import math

import torch


def euler_times(num_steps: int) -> torch.Tensor:
    """The times at which the velocity is asked for, float32 [num_steps]: 1, 1 - 1/n, ... 1/n.

    x at the next time is x - velocity / num_steps.
    """
    return torch.tensor([1.0 - step / num_steps for step in range(num_steps)], dtype=torch.float32)


def embed_time(times: torch.Tensor, dim: int, min_period: float, max_period: float) -> torch.Tensor:
    """Sines and then cosines of periods that are spread geometrically: times [...] -> float32 [..., dim], dim even.

    In float64: the shortest period is a few thousandths of a time that float32 holds to 6e-8.
    """
    fraction = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float64, device=times.device)
    periods = min_period * (max_period / min_period) ** fraction
    angles = times.to(torch.float64)[..., None] * (2 * math.pi / periods)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(torch.float32)
