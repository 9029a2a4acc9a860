"""One table of modulations for requests with any numbers of steps, as anytime sessions bring them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from pi05_paged import TINY_WEIGHTS, tiny_config

from mstar_rt.nn.flow import euler_times
from policies.pi05.checkpoint import load_network
from policies.pi05.network import Pi05Network
from policies.pi05.schedule import ACTION_TIME, MAX_ROWS, Schedules

Batch = list[tuple[int, int]]
batches = st.lists(
    st.lists(st.tuples(st.integers(0, 63), st.integers(1, 64)).map(lambda s: (s[0] % s[1], s[1])), min_size=1, max_size=5),
    min_size=1, max_size=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def network() -> Pi05Network:
    return load_network(tiny_config(), TINY_WEIGHTS)


@settings(max_examples=25, deadline=None)
@given(batches)
def test_every_step_has_the_row_of_its_time_to_the_last_bit(network: Pi05Network, served: list[Batch]) -> None:
    schedules, most = Schedules(network), MAX_ROWS
    with torch.inference_mode():
        for steps in served:
            modulation, rows = schedules.rows(steps)
            for (step, num_steps), row in zip(steps, rows, strict=True):
                alone = network.modulation(euler_times(num_steps)).values[step]
                assert torch.equal(modulation.values[row], alone)
            still = network.modulation(torch.zeros(1)).values[0]
            assert torch.equal(modulation.values[ACTION_TIME], still)
            assert not modulation.values.is_inference()
            most = max(most, sum({num_steps for _, num_steps in steps}))
            assert len(modulation.values) <= most + 1


def test_numbers_that_come_again_are_not_made_again(network: Pi05Network, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    modulation = network.modulation

    def counting(times: torch.Tensor) -> object:
        made.append(len(times))
        return modulation(times)

    monkeypatch.setattr(network, "modulation", counting)
    schedules = Schedules(network)
    for fewest in range(2, 11):
        schedules.rows([(0, 10), (1, fewest)])
    made.clear()
    for fewest in range(2, 11):
        schedules.rows([(3, 10), (fewest - 1, fewest), (0, 2)])
    assert not made
