"""Drawing tokens: against definitions written out, and alone against batched."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from mstar_rt.nn.sampling import Row, Sampling, draw, uniform_of

NOTHING = torch.empty(0, dtype=torch.int64)


def drawn(scores: torch.Tensor, sampling: Sampling, uniform: float = 0.5, seen: torch.Tensor = NOTHING) -> int:
    (token,) = draw(scores[None].clone(), [Row(sampling, seen, lambda: uniform)])
    return token


def shares(scores: torch.Tensor, sampling: Sampling, seen: torch.Tensor = NOTHING, steps: int = 400) -> torch.Tensor:
    """How much of the numbers from 0 to 1 draws each token."""
    counts = torch.zeros(len(scores))
    for step in range(steps):
        counts[drawn(scores, sampling, (step + 0.5) / steps, seen)] += 1
    return counts / steps


def by_definition(scores: torch.Tensor, sampling: Sampling, seen: torch.Tensor = NOTHING) -> torch.Tensor:
    """Probabilities, token by token in plain Python."""
    values = scores.double().tolist()
    for token in set(seen.tolist()):
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if sampling.top_k:
        least = values[order[min(sampling.top_k, len(order)) - 1]]
        order = [token for token in order if values[token] >= least]
    weights = {token: math.exp((values[token] - values[order[0]]) / sampling.temperature) for token in order}
    kept, mass, total = {}, 0.0, sum(weights.values())
    for token in order:
        if kept and mass >= sampling.top_p * total:
            break
        kept[token] = weights[token]
        mass += weights[token]
    found = torch.zeros(len(values))
    for token, weight in kept.items():
        found[token] = weight / mass
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.6, top_p=0.8),
        Sampling(2.0, top_k=3),
        Sampling(1.0, top_k=4, top_p=0.7),
        Sampling(1.0, top_p=0.0),
        Sampling(0.7, top_k=100, top_p=0.999, repetition_penalty=1.3),
        Sampling(1.0, repetition_penalty=0.5),
    ],
)
def test_shares_are_those_of_the_definition(sampling: Sampling) -> None:
    scores = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 2
    scores[4] = scores[7]  # a tie
    seen = torch.tensor([1, 5, 5, 9])
    torch.testing.assert_close(shares(scores, sampling, seen), by_definition(scores, sampling, seen), rtol=0, atol=3e-3)


def test_no_temperature_takes_the_likeliest_and_asks_for_no_number() -> None:
    def never() -> float:
        raise AssertionError("nothing is drawn")

    scores = torch.tensor([0.0, 3.0, 2.9, 3.0])
    assert draw(scores[None].clone(), [Row(Sampling(), NOTHING, never)]) == [1]
    assert draw(scores[None].clone(), [Row(Sampling(repetition_penalty=1.1), torch.tensor([1, 3]), never)]) == [2]


def test_a_large_vocabulary_is_not_sorted_but_draws_the_same() -> None:
    scores = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * 3
    for sampling in (Sampling(0.6, top_p=0.8), Sampling(1.0, top_p=0.95), Sampling(5.0, top_p=0.5)):
        ordered, order = functional.softmax(scores.double() / sampling.temperature, 0).sort(
            descending=True, stable=True
        )
        sums = ordered.cumsum(0)
        count = int((sums < sampling.top_p).sum()) + 1
        for uniform in (0.0, 0.1, 0.5, 0.9, 1 - 2**-53):
            index = int((sums[:count] <= uniform * sums[count - 1]).sum())
            assert drawn(scores, sampling, uniform) == int(order[min(index, count - 1)])


def test_a_row_draws_the_same_alone_and_beside_others() -> None:
    generator = torch.Generator().manual_seed(2)
    samplings = [Sampling(), Sampling(0.7, top_p=0.9), Sampling(1.3, top_k=7), Sampling(1.0, repetition_penalty=1.2)]
    for vocabulary in (53, 1001):
        scores = torch.randn(len(samplings), vocabulary, generator=generator)
        rows = [
            Row(sampling, torch.arange(index), lambda seed=index: uniform_of(torch.Generator().manual_seed(seed)))
            for index, sampling in enumerate(samplings)
        ]
        alone = [draw(scores[index : index + 1].clone(), [row])[0] for index, row in enumerate(rows)]
        assert draw(scores.clone(), rows) == alone


def test_scores_that_are_not_finite_are_no_tokens() -> None:
    with pytest.raises(AssertionError, match="not finite"):
        drawn(torch.tensor([0.0, math.nan]), Sampling(1.0))
