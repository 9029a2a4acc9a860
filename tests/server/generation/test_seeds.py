"""The seeds that a request may give, over any wire and whatever the model declares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ParamSpec
from mstar_rt.server.generation.requests import LARGEST_SEED, params_of


def model_of(minimum: float | None, maximum: float | None) -> Any:
    spec = ParamSpec("seed", "int", None, "", minimum=minimum, maximum=maximum, optional=True)
    return SimpleNamespace(task=lambda name: SimpleNamespace(params=(spec,)))


@pytest.mark.parametrize(
    ("minimum", "maximum", "least", "most"),
    [(0, None, 0, LARGEST_SEED), (None, None, 0, LARGEST_SEED), (3, 9, 3, 9)],
)
def test_a_seed_is_in_the_range_that_a_refusal_says(
    minimum: float | None, maximum: float | None, least: int, most: int
) -> None:
    model = model_of(minimum, maximum)
    for seed in (least, most):
        assert params_of(model, "draw", {"seed": seed}) == {"seed": seed}
    for seed in (least - 1, most + 1):
        with pytest.raises(InvalidArgument, match=f"^seed is {seed}, expected {least} to {most}$"):
            params_of(model, "draw", {"seed": seed})
    assert least <= params_of(model, "draw", {})["seed"] <= most
