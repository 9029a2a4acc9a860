"""What the network makes of flow times, once per schedule instead of once per step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from mstar_rt.nn.flow import euler_times
from policies.pi05.expert import Modulation
from policies.pi05.network import Pi05Network

MAX_KEPT = 4
"""Sets of schedules; one of ten steps takes 5 MB in the published networks."""
ACTION_TIME = 0
"""The row of time 0, at which actions are no noise any more."""


class Schedules:
    """Flow times of any number of steps, and the network's modulations at them."""

    def __init__(self, network: Pi05Network) -> None:
        self._network = network
        self._device = next(network.parameters()).device
        self._kept: OrderedDict[tuple[int, ...], tuple[dict[int, int], Modulation]] = OrderedDict()

    def rows(self, steps: Sequence[tuple[int, int]]) -> tuple[Modulation, list[int]]:
        """The modulations of a batch of (step, number of steps): `.rows([...])` of the first with the second.

        Row ACTION_TIME is that of time 0.
        """
        key = tuple(sorted({num_steps for _, num_steps in steps}))
        if key not in self._kept:
            self._kept[key] = self._made(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        firsts, modulation = self._kept[key]
        return modulation, [firsts[num_steps] + step for step, num_steps in steps]

    def _made(self, key: tuple[int, ...]) -> tuple[dict[int, int], Modulation]:
        times, firsts = [torch.zeros(1)], {}
        for num_steps in key:
            firsts[num_steps] = sum(map(len, times))
            times.append(euler_times(num_steps))
        # Guided steps differentiate past these, which what is made in inference mode does not allow.
        with torch.inference_mode(False), torch.no_grad():
            return firsts, self._network.modulation(torch.cat(times).to(self._device))
