"""The schedule of times and branches, and what is made of the velocities."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generators.bagel.guidance import (
    NONE,
    OF_GUIDING,
    branches_at,
    branches_read,
    check_guidance,
    check_guided,
    num_passes,
)
from generators.bagel.renormalization import guided
from generators.bagel.schedule import denoise_times
from mstar_rt.errors import InvalidArgument

PUBLISHED: dict[str, Any] = {
    "num_denoise_steps": 49, "timestep_shift": 3.0, "text_guidance": 4.0, "image_guidance": 1.0, "guidance_start": 0.4,
    "guidance_end": 1.0, "renormalization": "global", "renormalization_min": 0.0,
}  # fmt: skip
EDIT = {**PUBLISHED, "image_guidance": 2.0, "guidance_start": 0.0, "renormalization": "text_channel"}
STEPS = st.integers(1, 200)
SHIFTS = st.floats(0.01, 100)
PARAMS = st.fixed_dictionaries(
    {
        "num_denoise_steps": st.integers(1, 60), "timestep_shift": SHIFTS,
        "text_guidance": st.sampled_from([1.0, 1.5, 4.0]), "image_guidance": st.sampled_from([1.0, 2.0]),
        "guidance_start": st.floats(0, 1), "guidance_end": st.floats(0, 1),
        "renormalization": st.sampled_from(["none", "global"]), "renormalization_min": st.sampled_from([0.0, 0.5]),
    }
)  # fmt: skip


@given(STEPS, SHIFTS)
def test_times_fall_from_noise_to_image(num_steps: int, shift: float) -> None:
    times = denoise_times(num_steps, shift)
    assert len(times) == num_steps + 1
    assert (times[0], times[-1]) == (1.0, 0.0)
    assert all(earlier > later for earlier, later in pairwise(times))
    even = denoise_times(num_steps, 1.0)
    assert all((one >= other) == (shift >= 1) or abs(one - other) < 1e-12 for one, other in zip(times, even))


def test_the_published_times() -> None:
    u = torch.linspace(1, 0, 50)
    published = 3 * u / (1 + 2 * u)
    torch.testing.assert_close(torch.tensor(denoise_times(49, 3.0)), published, rtol=0, atol=1e-6)


def test_the_published_defaults_take_90_passes_and_not_147() -> None:
    assert num_passes(PUBLISHED, has_image_context=False) == 90
    assert num_passes(PUBLISHED, has_image_context=True) == 90
    assert num_passes({**PUBLISHED, "image_guidance": 1.5}, has_image_context=True) == 131
    assert num_passes({**PUBLISHED, "text_guidance": 1.0}, has_image_context=False) == 49
    assert num_passes(EDIT, has_image_context=True) == 147


@given(PARAMS)
def test_a_branch_runs_only_where_it_has_a_say(params: dict[str, Any]) -> None:
    times = denoise_times(params["num_denoise_steps"], params["timestep_shift"])
    of_steps = [branches_at(params, step) for step in range(params["num_denoise_steps"])]
    for time, branches in zip(times, of_steps):
        is_on = params["guidance_start"] < time <= params["guidance_end"]
        assert branches == (is_on and params["text_guidance"] > 1, is_on and params["image_guidance"] > 1)
    assert branches_read(params) == (any(b.without_text for b in of_steps), any(b.without_image for b in of_steps))
    least, most = (num_passes(params, has_image_context) for has_image_context in (False, True))
    assert len(of_steps) <= least <= most <= 3 * len(of_steps)


@given(PARAMS)
def test_guidance_that_would_change_nothing_is_refused(params: dict[str, Any]) -> None:
    is_asked_for = max(params["text_guidance"], params["image_guidance"]) > 1
    is_vain = is_asked_for and branches_read(params) == NONE
    if is_vain or (params["renormalization"] == "none" and params["renormalization_min"] > 0):
        with pytest.raises(InvalidArgument, match=r"none of the|renormalization is 'none'"):
            check_guidance(params)
    else:
        check_guidance(params)


@given(PARAMS)
def test_options_of_guidance_without_any_are_refused_but_for_defaults(params: dict[str, Any]) -> None:
    for usual in (params, PUBLISHED, EDIT):
        others = [name for name in OF_GUIDING if params[name] != usual[name]]
        if others and max(params["text_guidance"], params["image_guidance"]) == 1:
            with pytest.raises(InvalidArgument, match=f"^{others[0]} is .* nothing is guided: set text_guidance"):
                check_guided(params, usual)
        else:
            check_guided(params, usual)


def test_what_draws_nothing_reads_no_context() -> None:
    assert branches_read({"max_tokens": 3}) == NONE


def velocities(seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(3, 4, 3, 8, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("least", [0.0, 0.6])
def test_renormalisation(least: float) -> None:
    """No longer than without guidance, and never scaled to less than `least`."""
    v, t, i = velocities()
    params = {**EDIT, "renormalization_min": least}

    def scales(mode: str, image: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        given_by = guided(v, t, image, {**params, "renormalization": mode})
        plain = guided(v, t, image, {**params, "renormalization": "none", "renormalization_min": 0.0})
        return given_by, given_by.flatten(0, 1).norm(dim=1) / plain.flatten(0, 1).norm(dim=1)

    towards = t + 4 * (v - t)
    torch.testing.assert_close(guided(v, t, None, {**params, "renormalization": "none"}), towards)
    torch.testing.assert_close(guided(v, t, i, {**params, "renormalization": "none"}), i + 2 * (towards - i))
    _, of_tokens = scales("global", i)
    assert of_tokens.max() - of_tokens.min() < 1e-5
    assert of_tokens.mean() == pytest.approx(max(least, float(v.norm() / (i + 2 * (towards - i)).norm())), abs=1e-5)
    by_token, of_tokens = scales("channel", i)
    assert of_tokens.max() - of_tokens.min() > (0.01 if not least else -1)
    if not least:
        torch.testing.assert_close(by_token.norm(dim=2).clamp(max=10), by_token.norm(dim=2))
        assert (by_token.norm(dim=2) <= v.norm(dim=2) * (1 + 1e-5)).all()
    text_first = guided(v, t, i, params)
    by_text = guided(v, t, None, {**params, "renormalization": "channel"})
    torch.testing.assert_close(text_first, i + 2 * (by_text - i))
    torch.testing.assert_close(guided(v, t, None, params), by_text)


def test_an_image_alone_guides_too() -> None:
    """Where the published loop ignores it."""
    v, _, i = velocities()
    params = {**EDIT, "text_guidance": 1.0, "renormalization": "none"}
    torch.testing.assert_close(guided(v, None, i, params), i + 2 * (v - i))
    torch.testing.assert_close(guided(v, None, None, params), v)


def test_where_main_is_the_context_without_an_image_guidance_is_a_larger_scale_of_the_texts() -> None:
    v, t, _ = velocities()
    params = {**EDIT, "renormalization": "none"}
    torch.testing.assert_close(guided(v, t, v, params), t + (1 + 2 * (4 - 1)) * (v - t))
