"""How much each action of the previous chunk counts for the new one.

Source: arXiv 2506.07339, equation 5 and its public simulations.
"""

from __future__ import annotations

import math

import torch


def prefix_weights(schedule: str, delay: int, end: int, action_horizon: int) -> torch.Tensor:
    """[action_horizon] float32, row i for action i: 1 for i < delay, 0 for i >= end, and in between

        linear        c = (end - i) / (end - delay + 1)
        exponential   c (e^c - 1) / (e - 1)
        ones          1
        zeros         0

    Args:    0 <= delay <= end <= action_horizon, in actions. `end` is the field's `prefix_attention_horizon`, H - s in
             the paper: what some call the execution horizon.
    """
    assert 0 <= delay <= end <= action_horizon, (delay, end, action_horizon)
    faded = {
        "linear": lambda c: c,
        "exponential": lambda c: c * math.expm1(c) / math.expm1(1.0),
        "ones": lambda c: 1.0,
        "zeros": lambda c: 0.0,
    }[schedule]
    between = [faded((end - i) / (end - delay + 1)) for i in range(delay, end)]
    return torch.tensor([1.0] * delay + between + [0.0] * (action_horizon - end), dtype=torch.float32)


def held_rows(rows: torch.Tensor, action_horizon: int) -> torch.Tensor:
    """[K, D], K >= 1 -> [action_horizon, D]: the last row is held where there are fewer. Zeros would pull towards the
    data's mean."""
    short = action_horizon - rows.shape[0]
    return rows if short <= 0 else torch.cat([rows, rows[-1:].expand(short, -1)])
