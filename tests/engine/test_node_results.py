"""What a node hands back is checked before anything travels: a flag that no message carries, a leave that is no bool."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mstar_rt.engine import StatelessEngine, checked_batch_key
from mstar_rt.engine.engine import MAX_FLAG
from mstar_rt.errors import Internal
from mstar_rt.graph import GraphNode
from mstar_rt.model import NodeCall, NodeResult

NODE = GraphNode("n", ("x",), ("y",))
CALL = NodeCall("r", "r", "w", (), {}, {}, lambda: 0)


class Scripted:
    def __init__(self, result: NodeResult) -> None:
        self._result = result

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._result]


def run(**fields: Any) -> NodeResult:
    return run_outputs({"y": torch.zeros(1)}, **fields)


def run_outputs(outputs: dict[str, Any], **fields: Any) -> NodeResult:
    (checked,) = StatelessEngine(NODE, Scripted(NodeResult(outputs, **fields))).run([CALL])
    return checked


@pytest.mark.parametrize("flag", [3, b"late", None, "", "\udc80", "a\nb", "x" * (MAX_FLAG + 1)])
def test_a_flag_that_is_no_short_text_is_refused_with_the_nodes_name(flag: Any) -> None:
    with pytest.raises(Internal, match=r"node 'n' gave the flag .*printable text"):
        run(flags=(flag,))


def test_flags_that_are_short_text_pass() -> None:
    assert run(flags=("deadline", "x" * MAX_FLAG)).flags == ("deadline", "x" * MAX_FLAG)


@pytest.mark.parametrize("truth", [1, "yes", np.bool_(True), torch.tensor(3) > 2])
def test_whatever_is_true_leaves_and_travels_as_a_bool(truth: Any) -> None:
    assert run(leave=truth).leave is True
    assert run(leave=torch.tensor(False)).leave is False


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (1.5, "a float"),
        (None, "a NoneType"),
        ([torch.zeros(1)], "a list"),
        (np.zeros(1), "a ndarray"),
        (torch.zeros(2).to_sparse(), "a tensor of layout torch.sparse_coo"),
        (torch.zeros(1, device="meta"), "a tensor without data"),
    ],
)
def test_what_is_no_dense_tensor_is_refused_where_it_was_made(value: Any, what: str) -> None:
    with pytest.raises(Internal, match=f"node 'n' gave {what}.* as 'y', expected a dense tensor"):
        run_outputs({"y": value})


@pytest.mark.parametrize("key", [[], {}, torch.zeros(2)])
def test_a_batch_key_that_cannot_be_compared_names_the_node(key: Any) -> None:
    class Keyed(Scripted):
        def batch_key(self, call: NodeCall) -> Hashable:
            if isinstance(key, torch.Tensor):
                raise ValueError("ambiguous")
            return key  # type: ignore[no-any-return]

    engine = StatelessEngine(NODE, Keyed(NodeResult({})))
    with pytest.raises(Internal, match="batch_key of node 'n' failed"):
        checked_batch_key(engine, CALL)
