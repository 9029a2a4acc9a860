"""Outputs against what the model declares."""

from __future__ import annotations

import pytest
import torch

from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import NodeResult, ServedModel, TaskSpec, TensorSpec
from mstar_rt.worker.checks import OutputChecks

SPECS = {
    "add.y": TensorSpec("y", ("B", 3), ("float32",), "", units="m", max_sizes=(("B", 4),), max_abs=10.0),
    "add.z": TensorSpec("z", ("B-1",), ("float32", "int64"), ""),
    "add.maybe": TensorSpec("maybe", ("B", 3), ("float32",), "", optional=True),
}
ADD = GraphNode("add", ("x",), ("y", "z", "maybe"))
GRAPH = WalkGraph((ADD,), (Walk("count", ADD, emit=("y",)),))
X = TensorSpec("x", ("N",), ("float32",), "")
TASKS = tuple(
    TaskSpec(name, "", (X,), (TensorSpec("y", shape, ("float32",), ""),), ("count",))
    for name, shape in (("row", ("N",)), ("cube", ("N", 2, 2)))
)
CHECKS = OutputChecks(ServedModel("m", "f", "", GRAPH, TASKS, "nowhere:nodes", node_outputs=SPECS))


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ({"y": torch.zeros(2, 3), "z": torch.zeros(1)}, None),
        ({"y": torch.zeros(2, 3), "z": torch.zeros(1, dtype=torch.int64)}, None),
        ({"other": torch.zeros(7)}, None),
        ({"y": torch.zeros(2, 3), "maybe": torch.zeros(0, 3)}, None),
        ({"y": torch.zeros(2, 3), "maybe": torch.zeros(0)}, None),
        ({"y": torch.zeros(2, 3), "maybe": torch.zeros(2, 3)}, None),
        ({"y": torch.zeros(2, 3), "maybe": torch.zeros(1, 3)}, "an output 'maybe' that has shape [1, 3]"),
        ({"maybe": torch.zeros(0, dtype=torch.int64)}, "an output 'maybe' that has dtype int64, expected float32"),
        ({"y": torch.zeros(0, 4)}, "an output 'y' that has shape [0, 4]"),
        ({"y": torch.zeros(2, 4)}, "an output 'y' that has shape [2, 4], expected [B=2, 3]"),
        ({"y": torch.zeros(3)}, "has shape [3], expected [B, 3]"),
        ({"y": torch.zeros(2, 3), "z": torch.zeros(2)}, "an output 'z' that has shape [2]"),
        ({"y": torch.zeros(2, 3, dtype=torch.float64)}, "has dtype float64, expected float32"),
        ({"y": torch.zeros(5, 3)}, "has B = 5, expected at most 4"),
        ({"y": torch.full((1, 3), 11.0)}, "holds values up to 11, expected at most 10 m"),
        ({"other": torch.tensor([float("nan")])}, "an output 'other' that holds NaN or infinity"),
        ({"other": torch.tensor([float("inf")], dtype=torch.bfloat16)}, "holds NaN or infinity"),
        ({"other": 3}, "is a int, expected a tensor"),
    ],
)
def test_outputs_of_a_node(outputs: dict[str, torch.Tensor], sentence: str | None) -> None:
    fault = CHECKS.check_result("add", NodeResult(outputs))
    assert (fault is None) == (sentence is None)
    assert sentence is None or sentence in str(fault)
    assert fault is None or "node 'add'" in str(fault)


def test_emissions_fit_one_of_the_tasks_that_share_the_walk() -> None:
    assert CHECKS.check_emission("count", "y", torch.zeros(3)) is None
    assert CHECKS.check_emission("count", "y", torch.zeros(3, 2, 2)) is None
    assert CHECKS.check_emission("count", "unknown", torch.zeros(3, 3)) is None
    assert "walk 'count' emits 'y', which has shape [3, 3]" in str(
        CHECKS.check_emission("count", "y", torch.zeros(3, 3))
    )
