"""At which times the velocity is asked for on the way from noise to an image. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=256)
def denoise_times(num_steps: int, shift: float) -> tuple[float, ...]:
    """From 1 (noise) down to 0 (image), `num_steps` + 1 of them: the velocity is asked for at all but the last.

    u goes down in equal steps, and time is shift u / (1 + (shift - 1) u): a shift over 1 spends more steps near noise.
    """
    even = [1 - step / num_steps for step in range(1, num_steps)]
    # Both ends exactly: whether guidance is on in a step must not hang on a rounding error.
    return (1.0, *[shift * u / (1 + (shift - 1) * u) for u in even], 0.0)


def times_of(params: Mapping[str, Any]) -> tuple[float, ...]:
    """Those of a request."""
    return denoise_times(params["num_denoise_steps"], params["timestep_shift"])
