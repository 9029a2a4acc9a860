"""`PolicySpec`: what a model that drives a robot declares, so that one control session serves every kind of policy.

The policy's task takes, by these names:

    image_<camera>     uint8 [height, width, 3], RGB; optional exactly where the camera may be masked
    state              float32 [S], robot units
    previous_actions   optional float32 [K, A], robot units: what the robot has not executed yet of its last chunk,
                       row 0 belonging to the observation's tick
    noise              optional float32, the initial noise of a flow or diffusion, to reproduce a motion

With `num_observations` N > 1 images are [N, height, width, 3] and the state is [N, S], oldest first. Options, each only
where the policy has a use for it:

    instruction, normalization, seed, num_denoise_steps
    chunking, delay, prefix_attention_horizon, schedule, max_guidance_weight     real-time chunking, see `chunking`

It emits `actions`, float32 [action_horizon, A], robot units, row 0 belonging to the observation's tick, and may emit
`num_denoise_steps`, int64 [].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mstar_rt.errors import GraphError, nearest

if TYPE_CHECKING:
    from mstar_rt.model.served import ServedModel, TaskSpec

CHUNKING_MODES = ("guided", "guided_identity", "prefix")
"""Continuity between chunks that the model itself makes; temporal ensembling is the session's."""
NO_CHUNKING = "none"
SCHEDULES = ("linear", "exponential", "ones", "zeros")
CHUNKING_OPTIONS = ("chunking", "delay")
"""What the task of a policy with chunking modes has at least."""


@dataclass(frozen=True)
class CameraSpec:
    """One camera, in pixels. `may_be_masked`: observations without it are served, and see nothing in its place."""

    name: str
    height: int
    width: int
    may_be_masked: bool = False

    @property
    def tensor(self) -> str:
        """The task's input that takes its image."""
        return f"image_{self.name}"


@dataclass(frozen=True)
class VectorSpec:
    """A state or an action: its size, and the name and unit of each dimension, where they are known."""

    size: int
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicySpec:
    """`chunking` are those of CHUNKING_MODES that the model knows, `max_prefix_delay` the largest delay of mode
    "prefix" that it was trained for. `normalizations` are the names of its statistics: of one or none a session needs
    not speak.
    """

    action: VectorSpec
    action_horizon: int
    cameras: tuple[CameraSpec, ...] = ()
    state: VectorSpec | None = None
    task: str = "act"
    takes_instruction: bool = False
    num_observations: int = 1
    normalizations: tuple[str, ...] = ()
    chunking: tuple[str, ...] = ()
    max_prefix_delay: int | None = None


def check_policy(model: ServedModel) -> None:
    """Raises:  GraphError: the policy does not fit its task."""
    policy = model.policy
    if policy is None:
        return
    where = f"model {model.name!r}, its policy"
    task = next((task for task in model.tasks if task.name == policy.task), None)
    if task is None:
        raise GraphError(
            f"{where} has the task {policy.task!r}, {nearest(policy.task, [task.name for task in model.tasks])}"
        )
    if task.criticality != "control":
        raise GraphError(f"{where}: task {task.name!r} has criticality {task.criticality!r}, expected 'control'")
    _check_sizes(policy, where)
    _check_tensors(policy, task, where)
    _check_options(policy, task, where)


def _check_sizes(policy: PolicySpec, where: str) -> None:
    for name in ("action_horizon", "num_observations"):
        if getattr(policy, name) < 1:
            raise GraphError(f"{where} has {name} {getattr(policy, name)}, expected at least 1")
    for kind, vector in (("action", policy.action), ("state", policy.state)):
        if vector is None:
            continue
        if vector.size < 1:
            raise GraphError(f"{where} has a {kind} of {vector.size} numbers, expected at least 1")
        for what, texts in (("names", vector.names), ("units", vector.units)):
            if texts and len(texts) != vector.size:
                raise GraphError(f"{where}: its {kind} has {len(texts)} {what} for {vector.size} numbers")
    names = [camera.name for camera in policy.cameras]
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{where} has two cameras of the name {name!r}")


def _check_tensors(policy: PolicySpec, task: TaskSpec, where: str) -> None:
    inputs = {spec.name: spec for spec in task.inputs}
    times = () if policy.num_observations == 1 else (policy.num_observations,)
    expected: dict[str, tuple[tuple[int, ...], bool]] = {
        camera.tensor: ((*times, camera.height, camera.width, 3), camera.may_be_masked) for camera in policy.cameras
    }
    if policy.state is not None:
        expected["state"] = ((*times, policy.state.size), False)
    for name, (shape, optional) in expected.items():
        spec = inputs.get(name)
        if spec is None:
            raise GraphError(f"{where}: task {task.name!r} has no input {name!r}, {nearest(name, inputs)}")
        if tuple(spec.shape) != shape or spec.optional != optional:
            need = "optional " if optional else ""
            raise GraphError(f"{where}: input {name!r} of task {task.name!r} is not {need}of shape {list(shape)}")
    for name, spec in inputs.items():
        if name not in expected and not spec.optional:
            raise GraphError(f"{where}: task {task.name!r} needs {name!r}, which no control session gives")
    if policy.chunking and "previous_actions" not in inputs:
        raise GraphError(f"{where} has chunking modes, but task {task.name!r} takes no 'previous_actions'")
    actions = next((spec for spec in task.outputs if spec.name == "actions"), None)
    if actions is None or tuple(actions.shape) != (policy.action_horizon, policy.action.size):
        expected_shape = [policy.action_horizon, policy.action.size]
        raise GraphError(f"{where}: task {task.name!r} has no output 'actions' of shape {expected_shape}")


def _check_options(policy: PolicySpec, task: TaskSpec, where: str) -> None:
    known = {param.name: param for param in task.params}
    needed = ["instruction"] if policy.takes_instruction else []
    needed += ["normalization"] if len(policy.normalizations) > 1 else []
    needed += CHUNKING_OPTIONS if policy.chunking else []
    for name in needed:
        if name not in known:
            raise GraphError(f"{where}: task {task.name!r} has no option {name!r}, {nearest(name, known)}")
    for mode in policy.chunking:
        if mode not in CHUNKING_MODES:
            raise GraphError(f"{where} has the chunking mode {mode!r}, {nearest(mode, CHUNKING_MODES)}")
    if policy.chunking and set(known["chunking"].choices) != {NO_CHUNKING, *policy.chunking}:
        choices = ", ".join((NO_CHUNKING, *policy.chunking))
        raise GraphError(f"{where}: option 'chunking' of task {task.name!r} has not the choices {choices}")
    if ("prefix" in policy.chunking) != (policy.max_prefix_delay is not None):
        raise GraphError(f"{where}: max_prefix_delay goes with the chunking mode 'prefix', and only with it")
