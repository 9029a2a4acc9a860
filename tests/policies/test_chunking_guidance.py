"""Guidance against oracles: torch.func's Jacobian, central differences, and a linear flow whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from policies.chunking.guidance import clamp_prefix, guidance_weight, guided, guided_identity
from policies.chunking.weights import prefix_weights

B, H, D = 3, 6, 4


class Field(torch.nn.Module):
    """A velocity that couples all actions of a chunk, and no two chunks."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        size = H * D
        self.first = torch.randn(size, size, generator=generator, dtype=torch.float64) / math.sqrt(size)
        self.second = torch.randn(size, size, generator=generator, dtype=torch.float64) / math.sqrt(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x.flatten(1) @ self.first) @ self.second).view(x.shape)


def drawn(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x, previous = (torch.randn(B, H, D, generator=generator, dtype=torch.float64) for _ in range(2))
    time = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    weights = prefix_weights("linear", 2, 5, H).double().expand(B, H).unsqueeze(-1)
    strength = guidance_weight(time, torch.full((B,), 10.0, dtype=torch.float64))
    return x, time[:, None, None], previous, weights, strength[:, None, None]


def test_the_weight_is_the_papers_and_bounded() -> None:
    time = torch.tensor([1.0, 0.9, 0.5, 0.1], dtype=torch.float64)
    tau = 1 - time[1:]
    want = (1 - tau) / tau * (tau**2 + (1 - tau) ** 2) / (1 - tau) ** 2
    unbounded = guidance_weight(time, torch.full((4,), math.inf, dtype=torch.float64))
    torch.testing.assert_close(unbounded[1:], want)
    assert unbounded[0] == math.inf
    bounded = guidance_weight(time, torch.full((4,), 5.0, dtype=torch.float64))
    torch.testing.assert_close(bounded, torch.tensor([5.0, 5.0, 2.0, 5.0], dtype=torch.float64))


def test_the_true_form_is_torch_func_s_vector_jacobian_product() -> None:
    field, (x, time, previous, weights, strength) = Field(), drawn(1)
    got = guided(field, x, time, previous, weights, strength)
    for row in range(B):
        becomes, pull = torch.func.vjp(lambda at, t=time[row]: at - t * field(at[None])[0], x[row])
        (correction,) = pull((previous[row] - becomes) * weights[row])
        want = field(x[row : row + 1])[0] - strength[row] * correction
        torch.testing.assert_close(got[row], want, atol=1e-12, rtol=0)


def test_the_true_form_is_the_gradient_that_differences_measure() -> None:
    """The correction is minus the gradient of half the weighted squared error, by central differences."""
    field, (x, time, previous, weights, strength) = Field(), drawn(2)

    def error(at: torch.Tensor) -> torch.Tensor:
        return ((previous - (at - time * field(at))) ** 2 * weights).flatten(1).sum(1) / 2

    gradient, h = torch.zeros_like(x), 1e-6
    for row in range(H):
        for dim in range(D):
            moved = torch.zeros_like(x)
            moved[:, row, dim] = h
            gradient[:, row, dim] = (error(x + moved) - error(x - moved)) / (2 * h)
    got = guided(field, x, time, previous, weights, strength)
    torch.testing.assert_close(got, field(x) + strength * gradient, atol=1e-7, rtol=0)


def test_the_identity_form_differs_from_the_true_one_by_the_jacobian_alone() -> None:
    _, (x, time, previous, weights, strength) = Field(), drawn(3)
    constant = torch.randn(B, H, D, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    same = guided(lambda at: constant + 0 * at, x, time, previous, weights, strength)
    torch.testing.assert_close(guided_identity(x, constant, time, previous, weights, strength), same)
    field = Field()
    true = guided(field, x, time, previous, weights, strength)
    assert (guided_identity(x, field(x), time, previous, weights, strength) - true).abs().max() > 1e-2


@pytest.mark.parametrize("form", ["identity", "true"])
def test_nothing_is_guided_where_the_mask_is_zero_or_the_weight_is(form: str) -> None:
    field, (x, time, previous, weights, strength) = Field(), drawn(5)
    for mask, factor in ((weights * 0, strength), (weights, strength * 0)):
        if form == "true":
            got = guided(field, x, time, previous, mask, factor)
        else:
            got = guided_identity(x, field(x), time, previous, mask, factor)
        torch.testing.assert_close(got, field(x))


def test_a_flow_to_zero_lands_on_what_guides_it() -> None:
    """v = x / t is the flow of data that is all zero. Guided, it ends in the previous actions where the mask is one, and
    the error shrinks with the bound."""
    previous = torch.linspace(-1, 1, H * D, dtype=torch.float64).view(1, H, D)
    weights = prefix_weights("linear", 3, 5, H).double()[None, :, None]
    errors = []
    for bound in (0.0, 1.0, 10.0):
        x = torch.randn(1, H, D, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
        num_steps = 10
        for step in range(num_steps):
            time = torch.tensor([1 - step / num_steps], dtype=torch.float64)
            strength = guidance_weight(time, torch.full((1,), bound, dtype=torch.float64))[:, None, None]
            x = x - guided_identity(x, x / time, time, previous, weights, strength) / num_steps
        errors.append(float((x - previous)[:, :3].abs().max()))
        assert x[:, 5:].abs().max() < 1e-12
    assert errors[2] < 0.1 * errors[0]
    assert errors[0] > errors[1] > errors[2]


def test_works_in_inference_mode_on_tensors_made_there() -> None:
    with torch.inference_mode():
        field, (x, time, previous, weights, strength) = Field(), drawn(1)
        x = x + 0
    field = Field()
    with torch.inference_mode():
        got = guided(field, x, time, previous, weights, strength)
        assert torch.is_inference_mode_enabled()
    assert not got.requires_grad
    torch.testing.assert_close(got, guided(field, x.clone(), *drawn(1)[1:]))


def test_frozen_rows_are_the_previous_ones_exactly() -> None:
    x, previous = torch.zeros(2, H, D), torch.ones(2, H, D)
    frozen = torch.tensor([[True, True, False, False, False, False], [False] * 6])
    clamped = clamp_prefix(x, previous, frozen)
    assert (clamped[0, :2] == 1).all()
    assert clamped.sum() == 2 * D
