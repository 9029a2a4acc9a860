"""What a node hands back is checked before anything travels: a flag that no message carries, a leave that is no bool."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mstar_rt.engine.engine import MAX_FLAG, StatelessEngine
from mstar_rt.errors import Internal
from mstar_rt.graph import GraphNode
from mstar_rt.model import NodeCall, NodeResult


class Scripted:
    def __init__(self, result: NodeResult) -> None:
        self._result = result

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._result]


def run(**fields: Any) -> NodeResult:
    result = NodeResult({"y": torch.zeros(1)}, **fields)
    (checked,) = StatelessEngine(GraphNode("n", ("x",), ("y",)), Scripted(result)).run(
        [NodeCall("r", "r", "w", (), {}, {}, lambda: 0)]
    )
    return checked


@pytest.mark.parametrize("flag", [3, b"late", None, "", "\udc80", "a\nb", "x" * (MAX_FLAG + 1)])
def test_a_flag_that_is_no_short_text_is_refused_with_the_nodes_name(flag: Any) -> None:
    with pytest.raises(Internal, match="node 'n' gave the flag .*printable text"):
        run(flags=(flag,))


def test_flags_that_are_short_text_pass() -> None:
    assert run(flags=("deadline", "x" * MAX_FLAG)).flags == ("deadline", "x" * MAX_FLAG)


@pytest.mark.parametrize("truth", [1, "yes", np.bool_(True), torch.tensor(3) > 2])
def test_whatever_is_true_leaves_and_travels_as_a_bool(truth: Any) -> None:
    assert run(leave=truth).leave is True
    assert run(leave=torch.tensor(False)).leave is False
