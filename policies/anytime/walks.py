"""A policy's anytime task and its walk, out of the plain ones. No torch."""

from __future__ import annotations

import dataclasses

from mstar_rt.graph import DynamicLoop, GraphNode, Loop
from mstar_rt.model import ParamSpec, TaskSpec
from mstar_rt.model.anytime import MIN_DENOISE_STEPS, NUM_DENOISE_STEPS

PLAIN_TASK, ANYTIME_TASK = "act", "act_anytime"
"""Names of tasks and of their walks."""


def pace_node(*waits_for: str) -> GraphNode:
    """`waits_for`: what the loop needs besides, so that the number is chosen when it could start."""
    return GraphNode("pace", ("times", *waits_for), ("times",), doc="as many denoise steps as there is time for")


def may_end_early(loop: Loop, step: GraphNode) -> DynamicLoop:
    return DynamicLoop(loop.name, loop.body, loop.times, loop.limit, dict(loop.carry), leave=step.name)  # type: ignore[arg-type]


def with_anytime(plain: TaskSpec, min_denoise_steps: int, max_denoise_steps: int) -> tuple[TaskSpec, ...]:
    """The plain task and, if it has steps that may be left out, the anytime one."""
    default = next(param.default for param in plain.params if param.name == NUM_DENOISE_STEPS)
    assert isinstance(default, int)
    if min_denoise_steps >= default:
        return (plain,)
    fewest = ParamSpec(
        MIN_DENOISE_STEPS, "int", min_denoise_steps, "never fewer, even if the chunk comes too late then", "steps",
        minimum=1, maximum=max_denoise_steps,
    )  # fmt: skip
    anytime = dataclasses.replace(
        plain,
        name=ANYTIME_TASK,
        doc=f"{plain.doc}, in fewer denoise steps where the budget asks for it",
        walks=(ANYTIME_TASK,),
        params=(*plain.params, fewest),
    )
    return plain, anytime
