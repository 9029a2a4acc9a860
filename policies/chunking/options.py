"""The options of real-time chunking, as a policy's task declares them. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ParamSpec
from mstar_rt.model.anytime import fewest_steps
from mstar_rt.model.guidance_bound import GUIDED_MODES, check_guidance
from mstar_rt.model.policy import NO_CHUNKING, SCHEDULES

DEFAULT_SCHEDULE = "linear"
DEFAULT_MAX_GUIDANCE_WEIGHT = 10.0
"""LeRobot's; the paper's own simulations have 5 with the exponential schedule."""
LARGEST_GUIDANCE_WEIGHT = 1000.0
PREFIX = "prefix"


def chunking_params(modes: Sequence[str], action_horizon: int) -> tuple[ParamSpec, ...]:
    """The options of a policy with these chunking modes; none for a policy without."""
    if not modes:
        return ()
    return (
        ParamSpec(
            "chunking", "str", NO_CHUNKING,
            "how the chunk goes on from previous_actions. guided: by the true Jacobian; guided_identity: with the "
            "Jacobian taken as identity, cheaper; prefix: the first `delay` actions are theirs",
            choices=(NO_CHUNKING, *modes),
        ),
        ParamSpec(
            "delay", "int", 0, "actions that the robot executes before this chunk arrives", "actions",
            minimum=0, maximum=action_horizon - 1,
        ),
        ParamSpec(
            "prefix_attention_horizon", "int", None,
            "previous actions that guide the chunk, the first `delay` of them fully; at least `delay`. Unset: half the "
            "action horizon, but no more than there are, or `delay` where that is more",
            "actions", minimum=0, maximum=action_horizon, optional=True,
        ),
        ParamSpec(
            "schedule", "str", DEFAULT_SCHEDULE,
            "how the guidance fades from `delay` to prefix_attention_horizon; ones: not, zeros: at once",
            choices=SCHEDULES,
        ),
        ParamSpec(
            "max_guidance_weight", "float", DEFAULT_MAX_GUIDANCE_WEIGHT,
            "bound of the guidance, which grows without one towards pure noise; at most 2 with one denoise step, 11.6 "
            "with two, more with more: beyond, guidance would throw the chunk past the previous actions",
            minimum=0.0, maximum=LARGEST_GUIDANCE_WEIGHT,
        ),
    )  # fmt: skip


def mask_end(params: Mapping[str, Any], action_horizon: int, num_previous: int) -> int:
    """Where the guidance ends, in actions. Beyond the previous ones only where that is asked for: the last one, held,
    would pull the robot to a standstill.

    Raises:  InvalidArgument: before the delay does.
    """
    delay = params["delay"]
    end = int(params.get("prefix_attention_horizon", max(min(action_horizon // 2, num_previous), delay)))
    if end < delay:
        raise InvalidArgument(
            f"prefix_attention_horizon is {end}, but {delay} actions are executed before the chunk arrives (delay); "
            f"expected {delay} to {action_horizon}"
        )
    return end


def check_chunking(params: Mapping[str, Any], has_previous: bool, max_prefix_delay: int | None) -> None:
    """Whether the options of a request are such that each of them counts.

    Raises:  InvalidArgument: one that would be ignored, a delay beyond what the policy was trained for, or guidance
    that overshoots.
    """
    mode = params.get("chunking", NO_CHUNKING)
    if mode == NO_CHUNKING:
        if has_previous:
            raise InvalidArgument("previous_actions count with chunking only: choose a mode of option 'chunking'")
        _refuse(params, ("delay", "prefix_attention_horizon", "schedule", "max_guidance_weight"), mode)
    if mode == PREFIX:
        _refuse(params, ("prefix_attention_horizon", "schedule", "max_guidance_weight"), mode)
        if max_prefix_delay is not None and params["delay"] > max_prefix_delay:
            raise InvalidArgument(
                f"delay is {params['delay']} actions, but this policy was trained for prefixes of at most "
                f"{max_prefix_delay}: ask for chunks earlier, or choose chunking 'guided'"
            )
    num_steps = fewest_steps(params)
    if mode in GUIDED_MODES and num_steps is not None:
        check_guidance(num_steps, params["max_guidance_weight"])


def _refuse(params: Mapping[str, Any], names: Sequence[str], mode: str) -> None:
    unused = {
        "delay": 0, "prefix_attention_horizon": None, "schedule": DEFAULT_SCHEDULE,
        "max_guidance_weight": DEFAULT_MAX_GUIDANCE_WEIGHT,
    }  # fmt: skip
    for name in names:
        value = params.get(name, unused[name])
        if value != unused[name]:
            raise InvalidArgument(f"option {name!r} is {value!r}, which does not count with chunking {mode!r}")
