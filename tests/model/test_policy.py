"""A policy that does not fit its task is refused when it is declared, with a sentence that says what to change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from toy_policy import POLICY, policy_task, toy_policy

from mstar_rt.errors import GraphError
from mstar_rt.model import CameraSpec, ParamSpec, ServedModel, VectorSpec
from mstar_rt.model.policy_check import check_policy

PLAIN = replace(POLICY, chunking=(), max_prefix_delay=None, normalizations=(), takes_instruction=False)


def declared(**changes: Any) -> ServedModel:
    """The toy's task under another policy."""
    return replace(toy_policy(), policy=replace(POLICY, **changes))


def with_task(**changes: Any) -> ServedModel:
    """The toy's policy over another task."""
    return replace(toy_policy(), tasks=(replace(policy_task(POLICY), **changes),))


def with_input(name: str, **changes: Any) -> ServedModel:
    inputs = tuple(replace(spec, **changes) if spec.name == name else spec for spec in policy_task(POLICY).inputs)
    return with_task(inputs=inputs)


def with_output(name: str, **changes: Any) -> ServedModel:
    outputs = tuple(replace(spec, **changes) if spec.name == name else spec for spec in policy_task(POLICY).outputs)
    return with_task(outputs=outputs)


def with_option(name: str, **changes: Any) -> ServedModel:
    params = tuple(replace(spec, **changes) if spec.name == name else spec for spec in policy_task(POLICY).params)
    return with_task(params=params)


def without_option(name: str) -> ServedModel:
    return with_task(params=tuple(spec for spec in policy_task(POLICY).params if spec.name != name))


@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        PLAIN,
        replace(PLAIN, state=None, cameras=()),
        replace(PLAIN, num_observations=3),
        replace(PLAIN, action_horizon=1),
        replace(PLAIN, normalizations=("only",)),
        replace(POLICY, action=VectorSpec(7), chunking=("guided",), max_prefix_delay=None),
        replace(POLICY, anytime_task="act_anytime"),
    ],
)
def test_what_fits_is_taken(policy: Any) -> None:
    assert toy_policy(policy).policy == policy


def with_anytime(option: str = "min_denoise_steps", **changes: Any) -> ServedModel:
    """The toy's anytime task with another option, or without it."""
    model = toy_policy(replace(POLICY, anytime_task="act_anytime"))
    plain, anytime = model.tasks
    params = tuple(
        replace(spec, **changes) if spec.name == option else spec
        for spec in anytime.params
        if changes or spec.name != option
    )
    return replace(model, tasks=(plain, replace(anytime, params=params)))


REFUSED: list[tuple[Callable[[], ServedModel], str]] = [
    (lambda: declared(task="walk"), "has the task 'walk', known: act"),
    (lambda: with_task(criticality="planning"), "has criticality 'planning', expected 'control'"),
    (lambda: with_task(anytime=True), "task 'act' is anytime"),
    (lambda: declared(anytime_task="act_fast"), "has the task 'act_fast', did you mean 'act'?"),
    (lambda: declared(anytime_task="act"), "anytime task 'act' has no option 'min_denoise_steps'"),
    (lambda: with_anytime(), "anytime task 'act_anytime' has no option 'min_denoise_steps'"),
    (lambda: with_anytime(kind="float"), "option 'min_denoise_steps' of task 'act_anytime' is not an int from 1"),
    (lambda: with_anytime(minimum=None), "option 'min_denoise_steps' of task 'act_anytime' is not an int from 1"),
    (lambda: with_anytime("delay"), "anytime task 'act_anytime' differs from task 'act', expected the same inputs"),
    (lambda: declared(action_horizon=0), "has action_horizon 0, expected at least 1"),
    (lambda: declared(num_observations=0), "has num_observations 0, expected at least 1"),
    (lambda: declared(action=VectorSpec(0)), "has action size 0, expected at least 1"),
    (lambda: declared(state=VectorSpec(3, ("x",))), "its state has 1 names for 3 numbers"),
    (lambda: declared(action=VectorSpec(2, (), ("m",))), "its action has 1 units for 2 numbers"),
    (lambda: declared(normalizations=("lab", "lab")), "two normalizations of the name 'lab'"),
    (lambda: declared(cameras=POLICY.cameras * 2), "two cameras of the name 'top'"),
    (lambda: declared(cameras=(CameraSpec("", 4, 4),)), "a camera without a name"),
    (lambda: declared(cameras=(CameraSpec("top", 0, 4),)), "camera 'top' is 0 x 4 pixels"),
    (lambda: declared(cameras=(CameraSpec("side", 16, 16),)), "task 'act' has no input 'image_side'"),
    (lambda: declared(cameras=(CameraSpec("top", 16, 8),)), "input 'image_top' of task 'act' is not uint8 [16, 8, 3]"),
    (lambda: with_input("image_top", dtypes=("float32",)), "input 'image_top' of task 'act' is not uint8"),
    (lambda: with_input("image_wrist", optional=False), "input 'image_wrist' of task 'act' is not optional uint8"),
    (lambda: with_input("state", optional=True), "input 'state' of task 'act' is not float32 [3]"),
    (lambda: declared(num_observations=2), "is not uint8 [2, 16, 16, 3]"),
    (lambda: declared(state=None), "task 'act' needs 'state', which no control session gives"),
    (lambda: with_input("noise", optional=False), "needs 'noise', which no control session gives"),
    (lambda: with_task(one_of=(("noise", "previous_actions"),)), "needs one of noise, previous_actions, none of which"),
    (lambda: with_input("previous_actions", shape=("K", 3)), "'previous_actions' is not optional float32 ['K', 2]"),
    (lambda: with_input("previous_actions", shape=(8, 2), max_sizes=()), "does not take any number of actions up to 8"),
    (lambda: with_input("previous_actions", max_sizes=(("K", 7),)), "does not take any number of actions up to 8"),
    (lambda: with_output("actions", shape=(7, 2)), "has no output 'actions', float32 [8, 2]"),
    (lambda: with_output("actions", dtypes=("float16",)), "has no output 'actions', float32 [8, 2]"),
    (lambda: with_output("num_denoise_steps", dtypes=("int32",)), "output 'num_denoise_steps' of task 'act' is not int64"),
    (lambda: without_option("instruction"), "task 'act' has no option 'instruction'"),
    (lambda: without_option("normalization"), "task 'act' has no option 'normalization'"),
    (lambda: without_option("delay"), "task 'act' has no option 'delay'"),
    (lambda: declared(takes_instruction=False), "takes no instruction, but task 'act' has that option"),
    (lambda: with_option("delay", kind="float"), "option 'delay' of task 'act' is float, expected int"),
    (lambda: with_option("chunking", choices=("none", "guided")), "has not the choices none, guided, guided_identity, prefix"),
    (lambda: with_option("normalization", choices=("lab",)), "option 'normalization' of task 'act' has not the choices"),
    (lambda: with_option("schedule", choices=("linear", "steep")), "has choices that are none of linear, exponential"),
    (lambda: declared(chunking=("guidance",), max_prefix_delay=None), "the chunking mode 'guidance', did you mean 'guided'?"),
    (lambda: declared(chunking=("guided", "guided"), max_prefix_delay=None), "two chunking modes of the name 'guided'"),
    (lambda: declared(max_prefix_delay=None), "max_prefix_delay goes with the chunking mode 'prefix', and only with it"),
    (lambda: declared(chunking=("guided",)), "max_prefix_delay goes with the chunking mode 'prefix', and only with it"),
    (lambda: declared(max_prefix_delay=8), "has max_prefix_delay 8, expected 1 to 7"),
    (lambda: toy_policy(replace(POLICY, action_horizon=1, max_prefix_delay=1)), "its chunks have one action"),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused(declare: Callable[[], ServedModel], sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        declare()
    assert sentence in str(caught.value)
    assert "model 'toy', its policy" in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "changes", "sentence"),
    [
        ("previous_actions", {}, "has chunking modes, but its task takes no 'previous_actions'"),
        (
            "noise",
            {"session_inputs": (("noise", "make it"),)},
            "needs 'noise' from an earlier request, which no tick has",
        ),
    ],
)
def test_what_a_graph_could_give_too_is_refused(missing: str, changes: dict[str, Any], sentence: str) -> None:
    """A walk may have these inputs from another walk, so the policy's check alone is asked."""
    task = policy_task(POLICY)
    inputs = tuple(spec for spec in task.inputs if spec.name != missing)
    task = replace(task, inputs=inputs, **changes)
    with pytest.raises(GraphError) as caught:
        check_policy(cast(ServedModel, SimpleNamespace(name="toy", policy=POLICY, tasks=(task,))))
    assert sentence in str(caught.value)


def test_options_that_no_session_gives_may_be_there() -> None:
    assert with_task(params=(*policy_task(POLICY).params, ParamSpec("heat", "float", 1.0, "heat")))
