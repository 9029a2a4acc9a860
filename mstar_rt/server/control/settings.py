"""What the first message of a control session settles for all that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mstar_rt.errors import FailedPrecondition, InvalidArgument, nearest
from mstar_rt.model import CameraSpec, ParamValue, PolicySpec, ServedModel, TaskSpec
from mstar_rt.model.anytime import MIN_DENOISE_STEPS, NUM_DENOISE_STEPS, check_anytime, fewest_steps
from mstar_rt.model.guidance_bound import GUIDED_MODES, check_guidance
from mstar_rt.model.policy import NO_CHUNKING
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.control.chunking import Chunking, chunking_from, mode_of
from mstar_rt.server.control.schema_check import negotiate
from mstar_rt.server.control.seeds import random_seed
from mstar_rt.server.inputs import add_model_options
from mstar_rt.server.partial_check import check_given_options
from mstar_rt.server.task_runner import MAX_BUDGET_MS, TaskRunner

MAX_CONTROL_HZ = 10_000.0
SESSION_OPTIONS = (
    "instruction", "normalization", "seed", "num_denoise_steps", "chunking", "delay", "prefix_attention_horizon",
    "schedule", "max_guidance_weight",
)  # fmt: skip
"""Options of the policy's task that messages of the stream have fields for."""
FIELDS = (*SESSION_OPTIONS, "control_hz", "replan_every", "budget_ms", "anytime", "ensemble_decay", "epoch")
"""A name that is nearly one of these is hardly meant as an option of the policy."""


@dataclass(frozen=True)
class ControlSettings:
    """`params` are the options of every request; `seed` is None if the policy takes none. `max_seed` is the largest
    that it takes.
    """

    model: ServedModel
    policy: PolicySpec
    cameras: tuple[CameraSpec, ...]
    schema: wire.RobotSchema
    control_hz: float
    replan_every: int | None
    budget_ms: float
    chunking: Chunking | None
    params: dict[str, ParamValue]
    seed: int | None
    max_seed: int
    anytime: bool = False

    @property
    def task(self) -> str:
        """What every chunk of the session is made by."""
        return task_of(self.policy, self.anytime)

    @property
    def options(self) -> dict[str, ParamValue]:
        """What settles the cost of a chunk."""
        return self.params | ({} if self.chunking is None else self.chunking.params)

    @property
    def admitted_hz(self) -> float:
        return self.control_hz / (self.replan_every or 1)


def settings_from(runner: TaskRunner, opening: wire.OpenControl) -> ControlSettings:
    """Raises:  NotFound.  InvalidArgument: an option is wrong.  FailedPrecondition: the model is no policy, or the
    robot does not fit it.
    """
    return settings_for(runner.model(opening.model), opening)


def settings_for(model: ServedModel, opening: wire.OpenControl) -> ControlSettings:
    """Raises:  as `settings_from` does."""
    policy = model.policy
    if policy is None:
        raise FailedPrecondition(
            f"model {model.name!r} is not a policy, so it drives no robot: DescribeModel says which models have one"
        )
    _check_rhythm(opening, policy)
    chunking = chunking_from(opening, policy)
    negotiated = negotiate(model.name, policy, opening, mode_of(opening))
    task = model.task(task_of(policy, opening.anytime))
    params = _params(opening, model, policy, task, negotiated.normalization, chunking)
    known = {spec.name: spec for spec in task.params}
    seed = None
    if "seed" in known:
        seed = opening.seed if opening.HasField("seed") else random_seed()
    elif opening.HasField("seed"):
        raise InvalidArgument(f"a seed is given, but policy {model.name!r} draws no noise: leave it unset")
    largest = known["seed"].maximum if "seed" in known else None
    return ControlSettings(
        model=model,
        policy=policy,
        cameras=negotiated.cameras,
        schema=negotiated.schema(policy),
        control_hz=opening.control_hz,
        replan_every=opening.replan_every if opening.HasField("replan_every") else None,
        budget_ms=_budget_ms(opening, policy),
        chunking=chunking,
        params=params,
        seed=seed,
        max_seed=2**63 - 1 if largest is None else int(largest),
        anytime=opening.anytime,
    )


def task_of(policy: PolicySpec, anytime: bool) -> str:
    return policy.anytime_task if anytime and policy.anytime_task is not None else policy.task


def check_budget(budget_ms: float) -> None:
    if not 0 < budget_ms <= MAX_BUDGET_MS:
        raise InvalidArgument(
            f"budget_ms is {budget_ms}, expected a positive number of milliseconds, at most {MAX_BUDGET_MS:.0f}"
        )


def _check_rhythm(opening: wire.OpenControl, policy: PolicySpec) -> None:
    if not (math.isfinite(opening.control_hz) and 0 < opening.control_hz <= MAX_CONTROL_HZ):
        raise InvalidArgument(
            f"control_hz is {opening.control_hz}, expected the ticks per second at which the robot executes actions: "
            f"over 0, at most {MAX_CONTROL_HZ:.0f}"
        )
    if opening.HasField("replan_every") and not 1 <= opening.replan_every <= policy.action_horizon:
        raise InvalidArgument(
            f"replan_every is {opening.replan_every}, expected 1 to {policy.action_horizon}, the actions of a chunk"
        )
    if opening.anytime and policy.anytime_task is None:
        raise InvalidArgument(
            f"anytime is set, but policy {opening.model!r} has no denoise steps that it could leave out: leave it unset"
        )


def _budget_ms(opening: wire.OpenControl, policy: PolicySpec) -> float:
    if not opening.HasField("budget_ms"):
        return min(1e3 * policy.action_horizon / opening.control_hz, MAX_BUDGET_MS)
    check_budget(opening.budget_ms)
    return opening.budget_ms


def _params(
    opening: wire.OpenControl,
    model: ServedModel,
    policy: PolicySpec,
    task: TaskSpec,
    normalization: str | None,
    chunking: Chunking | None,
) -> dict[str, ParamValue]:
    """Checked, as far as they are known before the first observation."""
    _check_names(opening, policy, task)
    params: dict[str, ParamValue] = {}
    add_model_options(params, opening.model_options)
    if opening.HasField("num_denoise_steps"):
        params["num_denoise_steps"] = opening.num_denoise_steps
    known = [spec.name for spec in task.params]
    if normalization is not None and "normalization" in known:
        params["normalization"] = normalization
    if policy.chunking:
        params["chunking"] = NO_CHUNKING
    given = params | ({} if chunking is None else chunking.params)
    if policy.takes_instruction:
        given["instruction"] = opening.instruction
    check_given_options(model, (task.name,), given)
    values = {spec.name: given.get(spec.name, spec.default) for spec in task.params}
    if opening.anytime:
        check_anytime(values)
    if chunking is not None and chunking.mode in GUIDED_MODES:
        _check_guidance(values)
    return params


def _check_names(opening: wire.OpenControl, policy: PolicySpec, task: TaskSpec) -> None:
    known = [spec.name for spec in task.params]
    for name in opening.model_options:
        if name in SESSION_OPTIONS or (name in FIELDS and name not in known):
            raise InvalidArgument(f"option {name!r} is a field of the control session, not one of its model_options")
        if name in known:
            continue
        if name == MIN_DENOISE_STEPS and policy.anytime_task is not None:
            raise InvalidArgument(
                f"{name} says how far anytime may go, which is not set: set anytime (and budget_ms), or leave {name} "
                f"out; without anytime all {NUM_DENOISE_STEPS} are run"
            )
        raise InvalidArgument(
            f"{opening.model}.{task.name}: unknown option {name!r}, {nearest(name, {*known, *FIELDS})}"
        )


def _check_guidance(values: Mapping[str, ParamValue | None]) -> None:
    """Before the first motion: the first chunk has nothing that guides it, so only the second one would be refused."""
    num_steps, bound = fewest_steps(values), values.get("max_guidance_weight")
    if num_steps is not None and isinstance(bound, (int, float)):
        check_guidance(num_steps, float(bound))
