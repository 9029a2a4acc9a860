"""Requests are checked against the declaration: each refusal names the tensor or option and what was expected."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mstar_rt.errors import InvalidArgument
from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.spec import check_params, check_tensors

FRAMES = TensorSpec("frames", ("T", 4, 4, 3), ("uint8",), "camera frames", max_sizes=(("T", 3),))
ACTIONS = TensorSpec("actions", ("H", 7), ("float32",), "deltas", optional=True)
POSES = TensorSpec("poses", ("H", 7), ("float32",), "poses", optional=True)


def reading(*tensors: str) -> WalkGraph:
    node = GraphNode("node", tensors, ("kept",))
    return WalkGraph((node,), (Walk("walk", node, persist=("kept",)),))


def frames(t: int = 2) -> np.ndarray:
    return np.zeros((t, 4, 4, 3), np.uint8)


def test_symbols_take_the_sizes_found() -> None:
    sizes = check_tensors([FRAMES, ACTIONS], {"frames": frames(2), "actions": np.zeros((5, 7), np.float32)}, "m.t")
    assert sizes == {"T": 2, "H": 5}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, r"m.t: tensor 'frames' is missing, expected uint8 \[T, 4, 4, 3\] \(camera frames\)"),
        ({"frame": frames()}, "unknown tensor 'frame', did you mean 'frames'"),
        ({"frames": frames().astype(np.float32)}, "has dtype float32, expected uint8"),
        ({"frames": frames()[0]}, r"has shape \[4, 4, 3\], expected \[T, 4, 4, 3\]"),
        (
            {"frames": np.zeros((2, 5, 4, 3), np.uint8)},
            r"has shape \[2, 5, 4, 3\], expected \[T=2, 4, 4, 3\]",
        ),
        ({"frames": frames(0)}, r"has shape \[0, 4, 4, 3\]"),
        ({"frames": frames(4)}, "has T = 4, the limit of this model is 3"),
        ({"frames": frames(), "actions": np.full((2, 7), np.nan, np.float32)}, "NaN or infinity"),
        (
            {
                "frames": frames(),
                "actions": np.zeros((2, 7), np.float32),
                "poses": np.zeros((3, 7), np.float32),
            },
            r"tensor 'poses' has shape \[3, 7\], expected \[H=2, 7\]",
        ),
    ],
)
def test_bad_tensors(tensors: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        check_tensors([FRAMES, ACTIONS, POSES], tensors, "m.t")


def test_one_less_than_a_symbol() -> None:
    between = TensorSpec("between", ("T-1", 7), ("float32",), "actions between frames", optional=True)
    specs = [FRAMES, between]
    check_tensors(specs, {"frames": frames(3), "between": np.zeros((2, 7), np.float32)}, "m.t")
    with pytest.raises(InvalidArgument, match=r"tensor 'between' has shape \[3, 7\], expected \[T-1, 7\]"):
        check_tensors(specs, {"frames": frames(3), "between": np.zeros((3, 7), np.float32)}, "m.t")
    specs = [dataclasses.replace(FRAMES, optional=True), between]
    with pytest.raises(InvalidArgument, match="'between' has a size T-1, but no tensor is given that says what T is"):
        check_tensors(specs, {"between": np.zeros((3, 7), np.float32)}, "m.t")


def test_groups_of_a_task() -> None:
    either = (
        TensorSpec("a", ("N",), ("uint8",), "", optional=True),
        TensorSpec("b", ("N",), ("uint8",), "", optional=True),
    )
    one = TaskSpec("one", "", either, (), ("walk",), one_of=(("a", "b"),))
    most = TaskSpec("most", "", either, (), ("walk",), at_most_one=(("a", "b"),))
    model = ServedModel("m", "f", "", reading("a", "b"), (one, most), "nowhere:nodes")
    value = np.zeros(1, np.uint8)
    model.check_request("one", {"b": value}, {})
    model.check_request("most", {}, {})
    with pytest.raises(InvalidArgument, match="expected one of the tensors a, b, none is given"):
        model.check_request("one", {}, {})
    for task in ("one", "most"):
        with pytest.raises(InvalidArgument, match="tensors a and b are both given"):
            model.check_request(task, {"a": value, "b": value}, {})


def test_parameters_that_the_shapes_decide() -> None:
    task = TaskSpec(
        "t",
        "",
        (ACTIONS,),
        (),
        ("walk",),
        params=(ParamSpec("horizon", "int", None, "", maximum=4),),
        derived=(("horizon", "H"),),
    )
    model = ServedModel("m", "f", "", reading("actions"), (task,), "nowhere:nodes")
    actions = np.zeros((3, 7), np.float32)
    assert model.check_request("t", {"actions": actions}, {}) == {"horizon": 3}
    with pytest.raises(InvalidArgument, match="'horizon' is 2, but the tensors have H = 3"):
        model.check_request("t", {"actions": actions}, {"horizon": 2})
    with pytest.raises(InvalidArgument, match="is 5, expected"):
        model.check_request("t", {"actions": np.zeros((5, 7), np.float32)}, {})
    assert model.check_request("t", {}, {"horizon": 2}) == {"horizon": 2}
    with pytest.raises(InvalidArgument, match="option 'horizon' is missing"):
        model.check_request("t", {}, {})


PARAMS = [
    ParamSpec("num_samples", "int", 64, "candidates", minimum=2, maximum=1024),
    ParamSpec("max_displacement", "float", 0.05, "largest step", units="m", minimum=0.0),
    ParamSpec("planner", "str", "cem", "which", choices=("cem", "mppi")),
    ParamSpec("warm_start", "bool", False, "start from the last plan"),
    ParamSpec("pins", "floats", None, "pinned values", length=2, optional=True),
    ParamSpec("seed", "int", None, "required here"),
]


def test_defaults_are_filled_in() -> None:
    checked = check_params(PARAMS, {"seed": 3, "pins": [0, 1]}, "m.t")
    assert checked == {
        "num_samples": 64, "max_displacement": 0.05, "planner": "cem", "warm_start": False, "pins": (0.0, 1.0), "seed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, r"option 'seed' is missing \(required here\)"),
        ({"seed": 1, "num_sample": 3}, "unknown option 'num_sample', did you mean 'num_samples'"),
        ({"seed": 1, "num_samples": 1}, "is 1, expected 2 to 1024"),
        ({"seed": 1, "num_samples": 2.5}, "is 2.5, expected int"),
        ({"seed": 1, "num_samples": True}, "is True, expected int"),
        ({"seed": 1, "max_displacement": -0.1}, "is -0.1, expected at least 0.0 m"),
        ({"seed": 1, "max_displacement": float("nan")}, "expected a finite number"),
        ({"seed": 1, "planner": "gd"}, "is 'gd', expected one of cem, mppi"),
        ({"seed": 1, "warm_start": 1}, "is 1, expected bool"),
        ({"seed": 1, "pins": [1.0]}, "has 1 numbers, expected 2"),
    ],
)
def test_bad_params(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        check_params(PARAMS, params, "m.t")
