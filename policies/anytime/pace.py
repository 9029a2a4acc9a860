"""How many denoise steps a request gets: all that it asks for, or as many as end before its deadline.

The node `pace` stands between what a flow needs and the loop that runs it, in the walk of a policy's anytime task only.
Every step reads from its slot `times` how many there are, so requests with many and few steps, and those of the plain
task, share steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import torch

from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.model.anytime import FEWER_STEPS, MIN_DENOISE_STEPS, NUM_DENOISE_STEPS, check_anytime
from policies.anytime.step_times import StepTimes
from policies.anytime.walks import ANYTIME_TASK, PLAIN_TASK

STEP, LAST = "denoise", "finish"
"""The nodes of the loop, and of what follows it."""
WAY_BACK_NS = 1_000_000
"""From the last node to the answer's being sent: the conductor, the edge, encoding; 0.6 to 0.9 ms measured."""
SPENT, OF = 4, 5
"""Of the time that is left a fifth is not planned with: what a step too few costs, no test sees, but a chunk that comes
too late is none. Of the chunks of 4 to 16 simulated robots 0 to 6 % come too late, without it 5 to 42 %.
"""


class Pace:
    """times [num_denoise_steps] -> times [n], n from min_denoise_steps on, of a flow with n steps.

    Args:    times_of: the times of a flow of so many steps. measured: by the loop's node, if it is on this rank.
    """

    def __init__(self, times_of: Callable[[int], torch.Tensor], measured: StepTimes) -> None:
        self._times_of = times_of
        self._measured = measured

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._paced(call) for call in calls]

    def _paced(self, call: NodeCall) -> NodeResult:
        check_anytime(call.params)
        num_steps = steps_in_time(call, self._measured.high_ns)
        if num_steps == call.params[NUM_DENOISE_STEPS]:
            return NodeResult({"times": call.inputs["times"]})
        return NodeResult({"times": self._times_of(num_steps)}, flags=(FEWER_STEPS,))


def steps_in_time(call: NodeCall, measured_ns: int = 0) -> int:
    """All, where there is no deadline or nobody has measured a step; the fewest also where those come too late:
    whether that is still worth it, the scheduler knows.

    Args:    measured_ns: of a step and what ran before the next one; 0: not known.
    """
    most, least = call.params[NUM_DENOISE_STEPS], call.params[MIN_DENOISE_STEPS]
    step_ns = call.predicted_ns(STEP)
    if call.deadline_ns is None or step_ns is None:
        return int(most)
    left_ns = call.deadline_ns - call.now_ns() - (call.predicted_ns(LAST) or 0) - WAY_BACK_NS
    return int(min(most, max(least, left_ns * SPENT // OF // max(step_ns, measured_ns, 1))))


def is_last_step(call: NodeCall) -> bool:
    """Whether a step leaves the loop: the plain task's ends by itself."""
    return call.walk == ANYTIME_TASK and call.iteration[-1] + 1 == len(call.inputs["times"])


def noise_generator(call: NodeCall) -> torch.Generator:
    """The same for both tasks: n steps are n steps, whoever chose them."""
    return (call if call.walk == PLAIN_TASK else dataclasses.replace(call, walk=PLAIN_TASK)).generator()
