"""What the network makes of flow times, once per number of steps instead of once per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mstar_rt.nn.flow import euler_times
from policies.pi05.expert import Modulation
from policies.pi05.network import Pi05Network

MAX_ROWS = 128
"""Times that are kept; each takes half a MB in the published networks."""
ACTION_TIME = 0
"""The row of time 0, at which actions are no noise any more."""


class Schedules:
    """Flow times of any number of steps, and the network's modulations at them, in one table.

    The rows of a number of steps are made together and by themselves, so that they are the same to the last bit
    whichever others there are.
    """

    def __init__(self, network: Pi05Network) -> None:
        self._network = network
        self._device = next(network.parameters()).device
        self._made: dict[int, torch.Tensor] = {}
        self._firsts: dict[int, int] = {}
        self._table: Modulation | None = None

    def rows(self, steps: Sequence[tuple[int, int]]) -> tuple[Modulation, list[int]]:
        """The modulations of a batch of (step, number of steps): `.rows([...])` of the first with the second.

        Row ACTION_TIME is that of time 0.
        """
        if self._table is None or not self._firsts.keys() >= {num_steps for _, num_steps in steps}:
            self._table = self._with({num_steps for _, num_steps in steps})
        firsts = self._firsts
        return self._table, [firsts[num_steps] + step for step, num_steps in steps]

    def _with(self, needed: set[int]) -> Modulation:
        """A table that has the rows of these numbers of steps; of those before only if all have room."""
        kept = self._made if sum(needed.union(self._made)) <= MAX_ROWS else {}
        new = {n: self._made[n] if n in self._made else self._values(euler_times(n)) for n in needed}
        self._made = kept | new
        num_rows = ACTION_TIME + 1
        self._firsts = {}
        for num_steps in self._made:
            self._firsts[num_steps] = num_rows
            num_rows += num_steps
        # Guided steps differentiate past these, which what is made in inference mode does not allow.
        with torch.inference_mode(False), torch.no_grad():
            return Modulation(torch.cat([self._values(torch.zeros(1)), *self._made.values()]))

    def _values(self, times: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return self._network.modulation(times.to(self._device)).values
