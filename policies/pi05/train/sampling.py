"""Chunks of actions in process, without a server: plain flow matching over the dense network."""

from __future__ import annotations

import torch

from mstar_rt.nn.flow import euler_times
from policies.pi05.network import Pi05Network
from policies.pi05.train.batches import Context


@torch.inference_mode()
def sample_actions(
    network: Pi05Network,
    context: Context,
    noise: torch.Tensor,
    num_steps: int,
    given: torch.Tensor | None = None,
) -> torch.Tensor:
    """noise [B, H, A] -> actions [B, H, A], normalised.

    Args:  given [B, d, A]: the chunk's first actions, where they are settled already, d >= 1.
    """
    dense = network.dense_context(context.images, context.image_mask, context.ids, context.id_mask)
    modulation = network.modulation(torch.cat([euler_times(num_steps), torch.zeros(1)]))
    num_given = 0 if given is None else given.shape[1]
    is_given = torch.arange(noise.shape[1]).expand(noise.shape[:2]) < num_given
    x = noise.clone()
    for step in range(num_steps):
        if given is not None:
            x[:, :num_given] = given
        index = torch.where(is_given, num_steps, step) if num_given else torch.tensor(step)
        x = x - network.dense_velocity(x, modulation.rows(index), dense) / num_steps
    if given is not None:
        x[:, :num_given] = given
    return x
