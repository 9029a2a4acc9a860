"""Whether a policy fits the task that it names: then every control session can be served by that task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mstar_rt.errors import GraphError, nearest
from mstar_rt.model.anytime import MIN_DENOISE_STEPS, NUM_DENOISE_STEPS
from mstar_rt.model.policy import CHUNKING_MODES, CHUNKING_OPTIONS, NO_CHUNKING, SCHEDULES, PolicySpec

if TYPE_CHECKING:
    from mstar_rt.model.served import ServedModel, TaskSpec
    from mstar_rt.model.spec import TensorSpec

OPTION_KINDS = {
    "instruction": "str", "normalization": "str", "seed": "int", "num_denoise_steps": "int", "chunking": "str",
    "delay": "int", "prefix_attention_horizon": "int", "schedule": "str", "max_guidance_weight": "float",
    MIN_DENOISE_STEPS: "int",
}  # fmt: skip


def check_policy(model: ServedModel) -> None:
    """Raises:  GraphError: the policy does not fit its task."""
    policy = model.policy
    if policy is None:
        return
    where = f"model {model.name!r}, its policy"
    task = _task(model, policy.task, where)
    if task.criticality != "control":
        raise GraphError(f"{where}: task {task.name!r} has criticality {task.criticality!r}, expected 'control'")
    if task.anytime:
        raise GraphError(f"{where}: task {task.name!r} is anytime, but a control session wants whole chunks")
    if task.session_inputs:
        needed = ", ".join(repr(name) for name, _ in task.session_inputs)
        raise GraphError(f"{where}: task {task.name!r} needs {needed} from an earlier request, which no tick has")
    if policy.anytime_task is not None:
        _check_anytime(_task(model, policy.anytime_task, where), task, where)
    _check_sizes(policy, where)
    _check_cameras(policy, where)
    _check_chunking(policy, where)
    _check_inputs(policy, task, where)
    _check_outputs(policy, task, where)
    _check_options(policy, task, where)


def _task(model: ServedModel, name: str, where: str) -> TaskSpec:
    for task in model.tasks:
        if task.name == name:
            return task
    raise GraphError(f"{where} has the task {name!r}, {nearest(name, [task.name for task in model.tasks])}")


def _check_anytime(task: TaskSpec, plain: TaskSpec, where: str) -> None:
    """It is the plain task but for the walk that it runs, its doc and the option of the fewest steps."""
    known = {param.name: param for param in task.params}
    for name in (NUM_DENOISE_STEPS, MIN_DENOISE_STEPS):
        if name not in known:
            raise GraphError(f"{where}: anytime task {task.name!r} has no option {name!r}, {nearest(name, known)}")
    fewest = known[MIN_DENOISE_STEPS]
    if fewest.kind != "int" or fewest.minimum is None or fewest.minimum < 1 or fewest.default is None:
        raise GraphError(f"{where}: option {fewest.name!r} of task {task.name!r} is not an int from 1 with a default")
    rest = tuple(param for param in task.params if param is not fewest)
    if dataclasses.replace(task, name=plain.name, doc=plain.doc, walks=plain.walks, params=rest) != plain:
        raise GraphError(
            f"{where}: anytime task {task.name!r} differs from task {plain.name!r}, expected the same inputs, outputs "
            f"and options, and {MIN_DENOISE_STEPS!r} besides"
        )


def _check_sizes(policy: PolicySpec, where: str) -> None:
    for name in ("action_horizon", "num_observations"):
        if getattr(policy, name) < 1:
            raise GraphError(f"{where} has {name} {getattr(policy, name)}, expected at least 1")
    for kind, vector in (("action", policy.action), ("state", policy.state)):
        if vector is None:
            continue
        if vector.size < 1:
            raise GraphError(f"{where} has {kind} size {vector.size}, expected at least 1")
        for what, texts in (("names", vector.names), ("units", vector.units)):
            if texts and len(texts) != vector.size:
                raise GraphError(f"{where}: its {kind} has {len(texts)} {what} for {vector.size} numbers")
    _check_once(policy.normalizations, "normalization", where)


def _check_cameras(policy: PolicySpec, where: str) -> None:
    _check_once([camera.name for camera in policy.cameras], "camera", where)
    for camera in policy.cameras:
        if not camera.name:
            raise GraphError(f"{where} has a camera without a name")
        if camera.height < 1 or camera.width < 1:
            raise GraphError(f"{where}: camera {camera.name!r} is {camera.height} x {camera.width} pixels")


def _check_chunking(policy: PolicySpec, where: str) -> None:
    _check_once(policy.chunking, "chunking mode", where)
    for mode in policy.chunking:
        if mode not in CHUNKING_MODES:
            raise GraphError(f"{where} has the chunking mode {mode!r}, {nearest(mode, CHUNKING_MODES)}")
    if policy.chunking and policy.action_horizon == 1:
        raise GraphError(f"{where} has chunking modes, but its chunks have one action: nothing goes on in the next one")
    if ("prefix" in policy.chunking) != (policy.max_prefix_delay is not None):
        raise GraphError(f"{where}: max_prefix_delay goes with the chunking mode 'prefix', and only with it")
    if policy.max_prefix_delay is not None and not 1 <= policy.max_prefix_delay < policy.action_horizon:
        raise GraphError(
            f"{where} has max_prefix_delay {policy.max_prefix_delay}, expected 1 to {policy.action_horizon - 1}, less "
            "than the action_horizon"
        )


def _check_once(names: Sequence[str], kind: str, where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{where} has two {kind}s of the name {name!r}")


def _check_inputs(policy: PolicySpec, task: TaskSpec, where: str) -> None:
    inputs = {spec.name: spec for spec in task.inputs}
    times = () if policy.num_observations == 1 else (policy.num_observations,)
    expected = {
        camera.tensor: ((*times, camera.height, camera.width, 3), "uint8", camera.may_be_masked)
        for camera in policy.cameras
    }
    if policy.state is not None:
        expected["state"] = ((*times, policy.state.size), "float32", False)
    for name, (shape, dtype, optional) in expected.items():
        spec = inputs.get(name)
        if spec is None:
            raise GraphError(f"{where}: task {task.name!r} has no input {name!r}, {nearest(name, inputs)}")
        if tuple(spec.shape) != shape or spec.optional != optional or dtype not in spec.dtypes:
            need = "optional " if optional else ""
            raise GraphError(f"{where}: input {name!r} of task {task.name!r} is not {need}{dtype} {list(shape)}")
    for name, spec in inputs.items():
        if name not in expected and not spec.optional:
            raise GraphError(f"{where}: task {task.name!r} needs {name!r}, which no control session gives")
    for group in task.one_of:
        if not set(group) & expected.keys():
            raise GraphError(f"{where}: task {task.name!r} needs one of {', '.join(group)}, none of which it is given")
    _check_previous(policy, inputs.get("previous_actions"), where)


def _check_previous(policy: PolicySpec, previous: TensorSpec | None, where: str) -> None:
    if not policy.chunking:
        return
    if previous is None:
        raise GraphError(f"{where} has chunking modes, but its task takes no 'previous_actions'")
    if previous.dtypes != ("float32",) or len(previous.shape) != 2 or previous.shape[1] != policy.action.size:
        raise GraphError(f"{where}: input 'previous_actions' is not optional float32 ['K', {policy.action.size}]")
    most = dict(previous.max_sizes).get(str(previous.shape[0]), policy.action_horizon)
    if not isinstance(previous.shape[0], str) or most < policy.action_horizon:
        raise GraphError(
            f"{where}: input 'previous_actions' does not take any number of actions up to {policy.action_horizon}"
        )


def _check_outputs(policy: PolicySpec, task: TaskSpec, where: str) -> None:
    outputs = {spec.name: spec for spec in task.outputs}
    shape = (policy.action_horizon, policy.action.size)
    actions = outputs.get("actions")
    if actions is None or tuple(actions.shape) != shape or actions.dtypes != ("float32",):
        raise GraphError(f"{where}: task {task.name!r} has no output 'actions', float32 {list(shape)}")
    steps = outputs.get("num_denoise_steps")
    if steps is not None and (tuple(steps.shape), steps.dtypes) != ((), ("int64",)):
        raise GraphError(f"{where}: output 'num_denoise_steps' of task {task.name!r} is not int64 []")


def _check_options(policy: PolicySpec, task: TaskSpec, where: str) -> None:
    known = {param.name: param for param in task.params}
    needed = ["instruction"] if policy.takes_instruction else []
    needed += ["normalization"] if len(policy.normalizations) > 1 else []
    needed += CHUNKING_OPTIONS if policy.chunking else []
    for name in needed:
        if name not in known:
            raise GraphError(f"{where}: task {task.name!r} has no option {name!r}, {nearest(name, known)}")
    for name, kind in OPTION_KINDS.items():
        if name in known and known[name].kind != kind:
            raise GraphError(f"{where}: option {name!r} of task {task.name!r} is {known[name].kind}, expected {kind}")
    if "instruction" in known and not policy.takes_instruction:
        raise GraphError(f"{where} takes no instruction, but task {task.name!r} has that option")
    choices = {
        "chunking": (NO_CHUNKING, *policy.chunking) if policy.chunking else None,
        "normalization": policy.normalizations,
    }
    for name, expected in choices.items():
        if name in known and expected is not None and set(known[name].choices) != set(expected):
            raise GraphError(
                f"{where}: option {name!r} of task {task.name!r} has not the choices {', '.join(expected) or 'of none'}"
            )
    if "schedule" in known and not set(known["schedule"].choices) <= set(SCHEDULES):
        raise GraphError(f"{where}: option 'schedule' has choices that are none of {', '.join(SCHEDULES)}")
