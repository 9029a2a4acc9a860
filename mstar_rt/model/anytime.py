"""Policies that may run fewer denoise steps where the time left asks for it: what the edge and their nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import InvalidArgument

NUM_DENOISE_STEPS = "num_denoise_steps"
MIN_DENOISE_STEPS = "min_denoise_steps"
"""Option of a policy's anytime task: never fewer steps than this."""
USUAL_MIN_DENOISE_STEPS = 2
FEWER_STEPS = "fewer_steps"
"""The flag of a chunk that was made in fewer steps than its request asks for."""


def fewest_steps(params: Mapping[str, Any]) -> int | None:
    """In how few steps a request may be run; None: its options do not say how many it has."""
    fewest: int | None = params.get(MIN_DENOISE_STEPS, params.get(NUM_DENOISE_STEPS))
    return fewest


def check_anytime(params: Mapping[str, Any]) -> None:
    """Raises:  InvalidArgument: there is nothing that may be left out."""
    most, least = params[NUM_DENOISE_STEPS], params[MIN_DENOISE_STEPS]
    if least >= most:
        raise InvalidArgument(
            f"anytime allows fewer than num_denoise_steps, which is {most}, down to min_denoise_steps, which is "
            f"{least}: ask for more steps, allow fewer, or leave anytime unset"
        )
