"""Clips and choices of patches to what the networks take."""

from __future__ import annotations

import torch

from mstar_rt.errors import InvalidArgument
from world_models.vjepa2.processor import normalise_frames


def clip_from(frames: torch.Tensor, tubelet_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """RGB frames [T, H, W, 3] -> [3, T, H, W] as the encoder takes them; a single frame is repeated to fill a tubelet.

    Raises: InvalidArgument: a frame too few or too many, or float32 frames that cannot have been normalised.
    """
    check_num_frames(len(frames), tubelet_size)
    clip = normalise_frames(frames, dtype).transpose(0, 1)
    return clip.expand(-1, tubelet_size, -1, -1) if len(frames) == 1 else clip


def check_num_frames(num_frames: int, tubelet_size: int) -> None:
    """Raises: InvalidArgument: a frame too few or too many."""
    if num_frames > 1 and num_frames % tubelet_size:
        raise InvalidArgument(
            f"there are {num_frames} frames, expected one or a multiple of {tubelet_size}: leave some out or "
            "repeat the last"
        )


def chosen_patches(
    targets: torch.Tensor, context: torch.Tensor | None, num_patches: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The patches to predict, and those to predict them from: all others unless `context` says which.

    Args:   targets [M], context [C] int64: indices of patches, by time, row and column.
    Raises: InvalidArgument: an index that is not of the clip, one given twice, or no context left.
    """
    _check(targets, "target_patches", num_patches)
    if context is None:
        is_target = torch.zeros(num_patches, dtype=torch.bool, device=targets.device)
        is_target[targets] = True
        context = torch.nonzero(~is_target).squeeze(1)
        if not len(context):
            raise InvalidArgument("target_patches are all patches of the clip, which leaves none to predict them from")
    else:
        _check(context, "context_patches", num_patches)
    return targets, context


def _check(patches: torch.Tensor, name: str, num_patches: int) -> None:
    least, largest = int(patches.min()), int(patches.max())
    if least < 0 or largest >= num_patches:
        raise InvalidArgument(
            f"{name} holds {least if least < 0 else largest}, expected indices from 0 to {num_patches - 1}: the clip "
            f"has {num_patches} patches"
        )
    if len(torch.unique(patches)) != len(patches):
        raise InvalidArgument(f"{name} holds an index twice, expected each patch once")
