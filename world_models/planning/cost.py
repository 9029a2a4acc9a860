"""How far imagined frames are from goals, in latent space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from world_models.planning.options import COST_KINDS, GOAL_USES

LAST, PER_STEP, NEAREST = range(len(GOAL_USES))
"""A goal's mode: how its frames are used, as an index into GOAL_USES."""
PART_VALUES = 1 << 21
"""Latents of this many numbers are compared at once: their differences stay in the processor's cache (8 MB)."""


def goal_distance(
    latents: torch.Tensor, goal: torch.Tensor, weights: torch.Tensor, mode: int, step: int, kind: str
) -> torch.Tensor:
    """Distance of imagined frames to the goal that counts after horizon step `step`.

    Args:    latents [N, P, D]; goal [G, P, D] and its weights [G], G as the mode wants: one, one per step, or some;
             mode LAST, PER_STEP or NEAREST; kind one of COST_KINDS, see `distance`.
    Returns: [N] float32: to the only goal, to the goal of this step, or to the goal that is nearest by weight times
             distance; weights multiply distances.
    """
    distances = [weights[index] * distance(latents, goal[index], kind) for index in _compared(mode, step, len(goal))]
    return distances[0] if len(distances) == 1 else torch.stack(distances).amin(dim=0)


def has_distance(mode: int, step: int, horizon: int) -> bool:
    """Whether a plan reads the distance after this step: only that of the last one, unless every step has a goal."""
    return mode == PER_STEP or step + 1 == horizon


def distance(latents: torch.Tensor, goal: torch.Tensor, kind: str) -> torch.Tensor:
    """latents [N, P, D], goal [P, D] -> [N] float32.

    "l1": mean absolute difference, the published cost. "l2": root mean square difference of each patch, mean over the
    patches. "cosine": one less the cosine similarity of each patch, mean over the patches; of layer-normed latents that
    is half their mean squared difference.
    """
    rows = max(1, PART_VALUES // max(1, goal.numel()))
    return torch.cat([_DISTANCES[kind](part, goal) for part in latents.split(rows)])


def summed(distances: Sequence[torch.Tensor]) -> torch.Tensor:
    """Costs [N] of candidates from the distances after each step, of which some may be empty (not asked for).

    Where candidates share their first steps (a tree) a step has one distance for each group of consecutive candidates.
    """
    num_candidates = max(len(values) for values in distances)
    asked = [values.repeat_interleave(num_candidates // len(values)) for values in distances if len(values)]
    return asked[0] if len(asked) == 1 else torch.stack(asked).sum(dim=0)


def _compared(mode: int, step: int, num_goals: int) -> Sequence[int]:
    if mode == NEAREST:
        return range(num_goals)
    assert mode in (LAST, PER_STEP), f"goal mode {mode} is not known"
    return (step,) if mode == PER_STEP else (0,)


def _l1(latents: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return (latents - goal).abs().mean(dim=(-2, -1), dtype=torch.float32)


def _l2(latents: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return (latents - goal).square().mean(dim=-1, dtype=torch.float32).sqrt().mean(dim=-1)


def _cosine(latents: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return 1.0 - functional.cosine_similarity(latents.float(), goal.float(), dim=-1).mean(dim=-1)


_DISTANCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = dict(
    zip(COST_KINDS, (_l1, _l2, _cosine), strict=True)
)
