"""The mask over the previous chunk: its properties for any delay and end, and the literature's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.errors import InvalidArgument
from mstar_rt.model.guidance_bound import largest_weight
from mstar_rt.model.policy import SCHEDULES
from policies.chunking.guidance import guidance_weight, guided_identity
from policies.chunking.options import check_chunking, chunking_params, mask_end
from policies.chunking.weights import held_rows, prefix_weights


@st.composite
def masks(draw: st.DrawFn) -> tuple[int, int, int]:
    horizon = draw(st.integers(1, 60))
    end = draw(st.integers(0, horizon))
    return draw(st.integers(0, end)), end, horizon


@settings(max_examples=200, deadline=None)
@given(masks(), st.sampled_from(SCHEDULES))
def test_the_mask_is_one_then_falls_then_zero(mask: tuple[int, int, int], schedule: str) -> None:
    delay, end, horizon = mask
    weights = prefix_weights(schedule, delay, end, horizon)
    assert weights.shape == (horizon,)
    assert weights.dtype == torch.float32
    assert (weights[:delay] == 1).all()
    assert (weights[end:] == 0).all()
    assert (weights.diff() <= 0).all()
    between = weights[delay:end]
    assert ((between > 0) & (between < 1)).all() or schedule in ("ones", "zeros")
    if schedule in ("ones", "zeros"):
        assert (between == float(schedule == "ones")).all()


@settings(max_examples=100, deadline=None)
@given(masks())
def test_exponential_falls_faster_than_linear(mask: tuple[int, int, int]) -> None:
    linear, exponential = (prefix_weights(name, *mask) for name in ("linear", "exponential"))
    assert (exponential <= linear).all()
    c = linear.double()
    expected = c * torch.expm1(c) / math.expm1(1.0)
    torch.testing.assert_close(exponential.double(), expected, atol=1e-6, rtol=0)


def test_the_papers_example() -> None:
    """Delay 2, mask end 6 of 8: five steps from 1 to 0, both ends left out of what fades."""
    got = prefix_weights("linear", 2, 6, 8)
    torch.testing.assert_close(got, torch.tensor([1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0]))


def test_short_rows_are_held_and_long_ones_stay() -> None:
    rows = torch.arange(6.0).view(3, 2)
    torch.testing.assert_close(held_rows(rows, 5), torch.tensor([[0.0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]))
    assert held_rows(rows, 3) is rows


def params(mode: str, **changed: object) -> dict[str, object]:
    declared = {spec.name: spec for spec in chunking_params(("guided", "prefix"), 10)}
    filled = {name: spec.default for name, spec in declared.items() if spec.default is not None}
    return {**filled, "chunking": mode, **{name: declared[name].check(value, "x") for name, value in changed.items()}}


def test_the_mask_ends_at_half_the_horizon_or_the_delay_or_where_one_says() -> None:
    assert mask_end(params("guided", delay=2), 10, 8) == 5
    assert mask_end(params("guided", delay=7), 10, 8) == 7
    assert mask_end(params("guided", delay=2, prefix_attention_horizon=2), 10, 8) == 2
    assert mask_end(params("guided", delay=2), 10, 3) == 3, "a held action does not guide"
    assert mask_end(params("guided", delay=4), 10, 3) == 4
    assert mask_end(params("guided", delay=2, prefix_attention_horizon=6), 10, 3) == 6, "unless that is asked for"
    with pytest.raises(InvalidArgument, match="prefix_attention_horizon is 3, but 4 actions are executed"):
        mask_end(params("guided", delay=4, prefix_attention_horizon=3), 10, 8)


@pytest.mark.parametrize(
    ("mode", "changed", "sentence"),
    [
        ("none", {"delay": 1}, "'delay' is 1, which does not count"),
        ("none", {"schedule": "ones"}, "'schedule'"),
        ("none", {"max_guidance_weight": 5.0}, "'max_guidance_weight'"),
        ("none", {"prefix_attention_horizon": 4}, "'prefix_attention_horizon'"),
        ("prefix", {"schedule": "ones"}, "does not count with chunking 'prefix'"),
        ("prefix", {"delay": 4}, "trained for prefixes of at most 3"),
    ],
)
def test_options_that_would_not_count_are_refused(mode: str, changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        check_chunking(params(mode, **changed), mode != "none", 3)


def test_previous_actions_need_a_mode() -> None:
    check_chunking(params("none"), False, None)
    check_chunking(params("guided", delay=9, schedule="zeros"), True, None)
    check_chunking(params("prefix", delay=3), True, 3)
    with pytest.raises(InvalidArgument, match="previous_actions count with chunking only"):
        check_chunking(params("none"), True, None)


@pytest.mark.parametrize("delay", [-1, 10])
def test_a_delay_lies_within_the_chunk(delay: int) -> None:
    with pytest.raises(InvalidArgument, match="expected 0 to 9 actions"):
        params("guided", delay=delay)


@pytest.mark.parametrize("mode", ["guided", "guided_identity"])
@pytest.mark.parametrize(("num_steps", "bound"), [(1, 10.0), (1, 2.1), (2, 11.7), (10, 1000.0)])
def test_guidance_that_overshoots_is_refused(mode: str, num_steps: int, bound: float) -> None:
    asked = {**params("guided", max_guidance_weight=bound), "chunking": mode, "num_denoise_steps": num_steps}
    with pytest.raises(InvalidArgument, match="throws the chunk past the previous actions: give less, or more"):
        check_chunking(asked, True, None)
    check_chunking({**asked, "max_guidance_weight": largest_weight(num_steps)}, True, None)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.floats(0, 1), st.floats(0, 1))
def test_guidance_that_is_let_through_never_ends_further_away(num_steps: int, share: float, weight: float) -> None:
    """The flow's own steps where the identity is exact: what x would become moves as x does."""
    bound = share * largest_weight(num_steps)
    x, previous = torch.randn(1, 4, 1, dtype=torch.float64), torch.ones(1, 4, 1, dtype=torch.float64)
    weights, end = torch.full_like(previous, weight), torch.zeros_like(previous)
    for step in range(num_steps):
        time = torch.full((1, 1, 1), 1 - step / num_steps, dtype=torch.float64)
        strength = guidance_weight(time, torch.full_like(time, bound))
        x = x - guided_identity(x, (x - end) / time, time, previous, weights, strength) / num_steps
        end = end + (previous - end) * weights * strength / num_steps
    assert (end - previous).abs().max() <= 1 + 1e-6
    torch.testing.assert_close(x, end)
