"""How long a flow takes for each of its steps on a busy worker: the step itself, and what else runs before the next."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from mstar_rt.model import NodeCall
from policies.anytime.walks import ANYTIME_TASK

WINDOW = 32
QUANTILE = 0.9
MAX_REQUESTS = 256
"""That are remembered between two of their steps: those that end before their last one are forgotten so."""


class StepTimes:
    """Measured by requests of anytime tasks alone, whose node of the loop calls `begin` with each batch.

    A request that is dropped half-way has been measured until then: were it only those that end in time, the slow ones
    would never count.
    """

    def __init__(self) -> None:
        self._begun_ns: OrderedDict[str, int] = OrderedDict()
        self._newest_ns: deque[int] = deque(maxlen=WINDOW)

    def begin(self, calls: Sequence[NodeCall]) -> None:
        """A step begins with these calls in it."""
        for call in calls:
            if call.walk == ANYTIME_TASK:
                self._begin(call, call.now_ns())

    @property
    def high_ns(self) -> int:
        """From the beginning of a step to that of the next, rather too much than too little; 0: not measured."""
        newest_ns = sorted(self._newest_ns)
        return newest_ns[int(QUANTILE * (len(newest_ns) - 1))] if newest_ns else 0

    def _begin(self, call: NodeCall, now_ns: int) -> None:
        before_ns = self._begun_ns.pop(call.request_id, None)
        if before_ns is not None:
            self._newest_ns.append(now_ns - before_ns)
        if call.iteration[-1] + 1 < len(call.inputs["times"]):
            self._begun_ns[call.request_id] = now_ns
            if len(self._begun_ns) > MAX_REQUESTS:
                self._begun_ns.popitem(last=False)
