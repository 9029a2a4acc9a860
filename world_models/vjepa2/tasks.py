"""The tasks of V-JEPA 2-AC: what each takes and gives. No torch."""

from __future__ import annotations

from mstar_rt.model import ParamSpec, TaskSpec, TensorSpec
from world_models.planning.options import cost_param, goal_use_param, plan_params, window_params
from world_models.vjepa2.config import VJepa2Config

MAX_ENCODE_FRAMES = 256
MAX_SEQUENCES = 256
MAX_GOALS = 64
FRAME_DTYPES = ("uint8", "float32")
MAX_POSE = 10.0
"""Metres and radians: no arm reaches further, and the state embedding has seen nothing like it."""
MAX_LATENT = 1000.0
"""Far over the square root of any latent's width, which bounds what is layer-normed."""
MAX_WEIGHT = 1e6
POSE_UNITS = "m, rad (xyz Euler, base frame), gripper closedness"
CAMERA_UNITS = "m, rad (base frame)"
ROLLOUT_OUTPUTS = ("latents", "last_latent", "goal_distance")


def tasks_for(config: VJepa2Config) -> tuple[TaskSpec, ...]:
    """The tasks of the family, at these dimensions."""
    frames = _frames("frames", "T", config, optional=False, limit=MAX_ENCODE_FRAMES)
    latents = _latents("latents", "T", config, "latents of each frame, layer-normed", optional=False)
    return (
        TaskSpec("encode", "camera frames to latents", (frames,), (latents,), ("encode",)),
        TaskSpec(
            "set_goal", "keep a goal for the session's plans and rollouts", _goal(config), (), ("set_goal",),
            params=(goal_use_param(),),
            one_of=(("goal_frames", "goal_latents"),),
        ),
        _observe(config),
        _rollout(config),
        TaskSpec(
            "plan", "actions towards a goal, better with each iteration",
            (*_context(config), *_goal(config), *_plan_starts()), _plan_outputs(), ("plan",),
            params=plan_params(config.planner, config.predictor.max_frames),
            at_most_one=(("frames", "context_latents"), ("goal_frames", "goal_latents")),
            anytime=True,
        ),
    )  # fmt: skip


def _observe(config: VJepa2Config) -> TaskSpec:
    return TaskSpec(
        "observe",
        "add one frame to the session's history, from which its plans and rollouts start if they bring no frames",
        (
            _frames("frames", 1, config),
            _latents("context_latents", 1, config, "latents, in place of the frame"),
            _tensor("state", (7,), "pose at the frame", POSE_UNITS, optional=False),
            _tensor("executed_action", (7,), "action since the observation before; unset for the first", POSE_UNITS),
            *_extrinsics(1, config, optional=False),
        ),
        (TensorSpec("num_frames", (), ("int64",), "frames of the history that the window holds"),),
        ("observe",),
        params=window_params(config.predictor.max_frames),
        one_of=(("frames", "context_latents"),),
    )


def _rollout(config: VJepa2Config) -> TaskSpec:
    most = config.predictor.max_frames
    return TaskSpec(
        "rollout",
        "imagine what given actions lead to",
        (*_context(config), *_rollout_inputs(config), *_goal(config)),
        _rollout_outputs(config),
        ("rollout",),
        params=(
            ParamSpec("rollout_horizon", "int", None, "number of actions H", minimum=1, maximum=most),
            ParamSpec(
                "output", "str", "latents",
                "latents: of every step; last_latent: of the last step; goal_distance: after every step, no latents",
                choices=ROLLOUT_OUTPUTS,
            ),
            goal_use_param(),
            cost_param(),
            *window_params(most),
        ),
        derived=(("rollout_horizon", "H"),),
        at_most_one=(("frames", "context_latents"), ("goal_frames", "goal_latents")),
    )  # fmt: skip


def _context(config: VJepa2Config) -> tuple[TensorSpec, ...]:
    limit = config.predictor.max_frames
    return (
        _frames("frames", "T", config, limit=limit),
        _latents("context_latents", "T", config, "latents, in place of frames", limit=limit),
        _tensor("context_actions", ("T-1", 7), "actions between the context frames; needed if T > 1", POSE_UNITS),
        _tensor("context_states", ("T", 7), "pose at each context frame; unset: from state and actions", POSE_UNITS),
        _tensor("state", (7,), "pose at the last context frame; needed with frames or latents", POSE_UNITS),
        *_extrinsics("T", config),
    )


def _extrinsics(count: int | str, config: VJepa2Config, *, optional: bool = True) -> tuple[TensorSpec, ...]:
    if not config.predictor.use_extrinsics:
        return ()
    shape = (count, config.predictor.extrinsics_dim)
    return (_tensor("extrinsics", shape, "camera pose at each frame", CAMERA_UNITS, optional=optional),)


def _goal(config: VJepa2Config) -> tuple[TensorSpec, ...]:
    return (
        _frames("goal_frames", "G", config, limit=MAX_GOALS),
        _latents("goal_latents", "G", config, "latents of the goals, in place of frames", limit=MAX_GOALS),
        TensorSpec(
            "goal_weights", ("G",), ("float32",), "of several goals; unset: 1", optional=True, max_abs=MAX_WEIGHT
        ),
    )


def _rollout_inputs(config: VJepa2Config) -> tuple[TensorSpec, ...]:
    limits = (("B", MAX_SEQUENCES), ("H", config.predictor.max_frames))
    return (
        TensorSpec(
            "actions", ("B", "H", 7), ("float32",), "deltas per step", POSE_UNITS, max_sizes=limits, max_abs=MAX_POSE
        ),
        _tensor("states", ("B", "H", 7), "pose at which each action is taken; unset: integrated", POSE_UNITS),
    )


def _rollout_outputs(config: VJepa2Config) -> tuple[TensorSpec, ...]:
    return (
        _latents("latent", "B", config, "the world after each step, layer-normed; empty if not asked for"),
        _tensor("pose", ("B", 7), "the pose after each step", POSE_UNITS, optional=False),
        TensorSpec("goal_distance", ("B",), ("float32",), "after each step; empty if not asked for", optional=True),
    )


def _plan_starts() -> tuple[TensorSpec, ...]:
    return (
        _tensor("initial_mean", ("H", 7), "first mean, no rotation, within the bounds; unset: zeros", POSE_UNITS),
        _tensor("warm_mean", ("W", 4), "mean (x, y, z, gripper) that the session's last plan left", "m"),
        _tensor("action_low", (7,), "lower bound of each dimension of an action; unset: the model's", POSE_UNITS),
        _tensor("action_high", (7,), "upper bound of each dimension of an action; unset: the model's", POSE_UNITS),
    )


def _plan_outputs() -> tuple[TensorSpec, ...]:
    return (
        _tensor("plan_actions", ("H", 7), "the plan so far, after each iteration", POSE_UNITS, optional=False),
        _tensor("plan_cost", (2,), "cost of the best candidate, and mean over the elites", optional=False),
        _tensor("elite_std", ("H", 4), "spread of the elites in x, y, z and gripper", "m", optional=False),
    )


def _frames(
    name: str, count: int | str, config: VJepa2Config, *, optional: bool = True, limit: int | None = None
) -> TensorSpec:
    size = config.encoder.image_size
    max_sizes = ((str(count), limit),) if limit is not None else ()
    return TensorSpec(
        name, (count, size, size, config.encoder.num_channels), FRAME_DTYPES, "RGB frames, oldest first",
        "uint8: 0 to 255; float32: normalised with ImageNet's mean and std", optional=optional, max_sizes=max_sizes,
    )  # fmt: skip


def _latents(
    name: str, count: int | str, config: VJepa2Config, doc: str, *, optional: bool = True, limit: int | None = None
) -> TensorSpec:
    shape = (count, config.encoder.num_patches, config.encoder.dim)
    max_sizes = ((str(count), limit),) if limit is not None else ()
    return TensorSpec(name, shape, ("float32",), doc, optional=optional, max_sizes=max_sizes, max_abs=MAX_LATENT)


def _tensor(name: str, shape: tuple[int | str, ...], doc: str, units: str = "", *, optional: bool = True) -> TensorSpec:
    max_abs = MAX_POSE if units in (POSE_UNITS, CAMERA_UNITS) else MAX_LATENT
    return TensorSpec(name, shape, ("float32",), doc, units, optional=optional, max_abs=max_abs)
