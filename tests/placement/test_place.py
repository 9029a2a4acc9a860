"""Placement rules that cannot work are refused at load, with the reason."""

from __future__ import annotations

import pytest

from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError
from mstar_rt.placement import place

NODES = {"arm": ["encode", "predict"], "voice": ["speak"]}


def test_without_rules_everything_runs_on_the_lowest_rank() -> None:
    placement = place(NODES, [], [3, 1])
    assert placement.rank_of("arm") == 1
    assert placement.models_on(1) == ("arm", "voice")
    assert placement.models_on(3) == ()


def test_models_on_different_ranks() -> None:
    placement = place(NODES, [PlacementRule("voice", ranks=(1,))], [0, 1])
    assert (placement.rank_of("arm"), placement.rank_of("voice")) == (0, 1)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (PlacementRule("amr", ranks=(0,)), r"placement\[0\]: unknown model 'amr', did you mean 'arm'\?"),
        (PlacementRule("arm", ("encoder",), (0,)), "has no node 'encoder', did you mean 'encode'"),
        (PlacementRule("arm", ranks=(7,)), r"rank 7 has no worker, the workers are \[0, 1\]"),
        (PlacementRule("arm", ranks=(0, 1)), "exactly one rank"),
        (PlacementRule("arm", ("encode",), (1,)), r"spread over ranks \[0, 1\]"),
    ],
)
def test_impossible_rules(rule: PlacementRule, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        place(NODES, [rule], [0, 1])
