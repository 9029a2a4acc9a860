"""Guiding a flow towards the actions that the robot has not executed yet.

The flow's time t runs from 1 (noise) to 0 (actions), and its velocity is v = dx/dt, about noise - action. So where x is
now, x - t v is what the chunk would become. The literature's tau is 1 - t, its velocity -v.

Source: arXiv 2506.07339, equations 2 and 3; arXiv 2512.05964 for the prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Velocity = Callable[[torch.Tensor], torch.Tensor]


def guidance_weight(time: torch.Tensor, max_weight: torch.Tensor) -> torch.Tensor:
    """min(max_weight, (1 - tau) / tau * (tau^2 + (1 - tau)^2) / (1 - tau)^2) with tau = 1 - time.

    Args:    time in (0, 1], max_weight: float64 of one shape, which the result has too.
    """
    tau = 1 - time
    unbounded = (tau**2 + time**2) / (tau * time)  # infinite at tau = 0, pure noise
    return torch.minimum(unbounded, max_weight)


def guided_identity(
    x: torch.Tensor, velocity: torch.Tensor, time: torch.Tensor, previous: torch.Tensor, weights: torch.Tensor,
    strength: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The guided velocity with the velocity's Jacobian taken as zero: that of what the chunk becomes is the identity.

    Args:    x, velocity, previous [B, H, D] float32; time, strength [B, 1, 1], strength from `guidance_weight`;
             weights [B, H, 1], 0 where nothing guides.
    Returns: [B, H, D].
    """
    return velocity - strength * (previous - (x - time * velocity)) * weights


def guided(
    velocity_of: Velocity, x: torch.Tensor, time: torch.Tensor, previous: torch.Tensor, weights: torch.Tensor,
    strength: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The guided velocity by the true vector-Jacobian product, `velocity_of` being differentiated by its argument.

    Arguments and result are those of `guided_identity`; a sequence of the batch must not depend on another. Works in
    inference mode, too: what `velocity_of` closes over must not have been made in it.
    """
    with torch.inference_mode(False), torch.enable_grad():
        # What was made in inference mode cannot be differentiated by, a copy that was not can.
        at = x.clone().requires_grad_()
        velocity = velocity_of(at)
        becomes = at - time.clone() * velocity
        error = (previous.clone() - becomes.detach()) * weights.clone()
        (correction,) = torch.autograd.grad(becomes, at, error)
    return velocity.detach() - strength * correction


def clamp_prefix(x: torch.Tensor, previous: torch.Tensor, frozen: torch.Tensor) -> torch.Tensor:
    """x with the rows of `previous` where `frozen` [B, H] says so. Their time is 0: they are actions, no noise."""
    return torch.where(frozen.unsqueeze(-1), previous, x)
