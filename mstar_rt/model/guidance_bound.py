"""Does guidance bring a chunk nearer to the previous actions? With few steps and a large weight it throws it beyond.

With the Jacobian taken as the identity, step k of n leaves (1 - w s_k / n) of the distance to a previous action whose
weight is w, where s_k is the bounded strength at that step's time. If the product over all steps exceeds 1 for some w,
the chunk ends further away than it began: one step with a bound of 10 ends nine times as far.
"""

from __future__ import annotations

from functools import lru_cache

from mstar_rt.errors import InvalidArgument

GUIDED_MODES = ("guided", "guided_identity")
WEIGHTS = tuple(i / 128 for i in range(1, 129))
"""Where the product is looked at; it is smooth in the weight."""
TOLERANCE = 1e-9


def distance_left(num_steps: int, max_weight: float) -> float:
    """The largest share of the distance to a previous action that guidance leaves, over all weights from 0 to 1."""
    strengths = [_strength(step, num_steps, max_weight) / num_steps for step in range(num_steps)]
    worst = 0.0
    for weight in WEIGHTS:
        left = 1.0
        for strength in strengths:
            left *= abs(1 - weight * strength)
        worst = max(worst, left)
    return worst


def check_guidance(num_steps: int, max_weight: float) -> None:
    """Raises:  InvalidArgument: so few steps and so large a weight overshoot."""
    if _overshoots(num_steps, max_weight):
        steps = "1 denoise step" if num_steps == 1 else f"{num_steps} denoise steps"
        raise InvalidArgument(
            f"max_guidance_weight is {max_weight:g}, but with {steps} a guidance over {largest_weight(num_steps):g} "
            "throws the chunk past the previous actions: give less, or more denoise steps"
        )


@lru_cache(maxsize=1024)
def _overshoots(num_steps: int, max_weight: float) -> bool:
    return distance_left(num_steps, max_weight) > 1 + TOLERANCE


@lru_cache(maxsize=1024)
def largest_weight(num_steps: int) -> float:
    """That does not overshoot, rounded down to a tenth."""
    tenths, above = 0, 10
    while not _overshoots(num_steps, above / 10):
        tenths, above = above, 2 * above
    while above - tenths > 1:
        middle = (tenths + above) // 2
        tenths, above = (tenths, middle) if _overshoots(num_steps, middle / 10) else (middle, above)
    return tenths / 10


def _strength(step: int, num_steps: int, max_weight: float) -> float:
    """As `policies.chunking` has it; arXiv 2506.07339, equation 3."""
    tau = step / num_steps
    time = 1 - tau
    return max_weight if step == 0 else min(max_weight, (tau**2 + time**2) / (tau * time))
