"""What a served V-JEPA 2-AC declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.model import KVSpec, ParamSpec, ServedModel, TaskSpec, TensorSpec
from world_models.planning.options import plan_params
from world_models.vjepa2.config import VJepa2Config, preset
from world_models.vjepa2.walks import CACHE, build_graph

DEFAULT_PRESET = "tabletop"
KNOWN_OPTIONS = ("preset", "config", "random_seed")
MAX_ENCODE_FRAMES = 256
MAX_SEQUENCES = 256
FRAME_DTYPES = ("uint8", "float32")
MAX_POSE = 10.0
"""Metres and radians: no arm reaches further, and the state embedding has seen nothing like it."""
MAX_LATENT = 1000.0
"""Far over the square root of any latent's width, which bounds what is layer-normed."""
POSE_UNITS = "m, rad (xyz Euler, base frame), gripper closedness"


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:
        checkpoint: a published `.pt` or our `.safetensors`; "" to look at the model without running it.
        options: `preset` names a member of the family, or `config` the JSON file of its dimensions; with neither, the
            JSON that lies beside the checkpoint under the same name, else the preset "tabletop". `random_seed` (an int)
            takes random weights in place of a checkpoint, for benchmarks of any size.
    Raises:  ConfigError: an unknown or contradictory option, or impossible dimensions.
    """
    _check_options(name, checkpoint, options)
    config = config_for(checkpoint, options)
    predictor = config.predictor
    return ServedModel(
        name=name,
        family="vjepa2_ac",
        doc=f"V-JEPA 2-AC ({config.name}): imagines what actions lead to, and plans towards an image goal",
        graph=build_graph(predictor.max_frames),
        tasks=tasks_for(config),
        nodes_factory="world_models.vjepa2.nodes:build_nodes",
        caches={
            CACHE: KVSpec(
                num_layers=predictor.depth,
                num_kv_heads=predictor.num_heads,
                head_dim=predictor.head_dim,
                page_size=predictor.frame_tokens,
                max_sequence_tokens=predictor.max_frames * predictor.frame_tokens,
            )
        },
        checkpoint=checkpoint,
        options=dict(options),
        facts={
            "image_size": config.encoder.image_size,
            "tokens_per_frame": config.encoder.num_patches,
            "latent_dim": config.encoder.dim,
            "max_rollout_steps": predictor.max_frames,
            "trained_positions": predictor.trained_frames,
            "frames_per_second": config.frames_per_second,
        },
    )


def config_for(checkpoint: str, options: Mapping[str, Any]) -> VJepa2Config:
    """The dimensions that the options of `declare` ask for."""
    if "preset" in options:
        return preset(options["preset"])
    if "config" in options:
        return VJepa2Config.from_json(Path(options["config"]))
    beside = Path(checkpoint).with_suffix(".json") if checkpoint else None
    if beside is not None and beside.is_file():
        return VJepa2Config.from_json(beside)
    return preset(DEFAULT_PRESET)


def tasks_for(config: VJepa2Config) -> tuple[TaskSpec, ...]:
    """The tasks of the family, at these dimensions."""
    encoder, predictor = config.encoder, config.predictor
    patches, width = encoder.num_patches, encoder.dim
    frames = _frames("frames", "T", config, optional=False, limit=MAX_ENCODE_FRAMES)
    goal = (
        _frames("goal_frames", 1, config),
        _tensor("goal_latents", (patches, width), "latents of the goal, in place of its frame"),
    )
    context = _context(config)
    latents = _tensor("latents", ("T", patches, width), "latents of each frame, layer-normed", optional=False)
    return (
        TaskSpec("encode", "camera frames to latents", (frames,), (latents,), ("encode",)),
        TaskSpec(
            "set_goal", "keep a goal for the session's plans", goal, (), ("set_goal",),
            one_of=(("goal_frames", "goal_latents"),),
        ),
        TaskSpec(
            "rollout", "imagine what given actions lead to", (*context, *_rollout_inputs(config)),
            _rollout_outputs(config), ("rollout",),
            params=(
                ParamSpec(
                    "rollout_horizon", "int", None, "number of actions H", minimum=1, maximum=predictor.max_frames
                ),
            ),
            derived=(("rollout_horizon", "H"),),
            one_of=(("frames", "context_latents"),),
        ),
        TaskSpec(
            "plan", "actions towards a goal, better with each iteration", (*context, *goal, *_plan_starts()),
            _plan_outputs(), ("plan",),
            params=plan_params(config.planner, predictor.max_frames),
            one_of=(("frames", "context_latents"),),
            at_most_one=(("goal_frames", "goal_latents"),),
            anytime=True,
        ),
    )  # fmt: skip


def _context(config: VJepa2Config) -> tuple[TensorSpec, ...]:
    patches, width, limit = config.encoder.num_patches, config.encoder.dim, config.predictor.max_frames
    return (
        _frames("frames", "T", config, limit=limit),
        _tensor("context_latents", ("T", patches, width), "latents, in place of frames", max_sizes=(("T", limit),)),
        _tensor("context_actions", ("T-1", 7), "actions between the context frames; needed if T > 1", POSE_UNITS),
        _tensor("context_states", ("T", 7), "pose at each context frame; unset: from state and actions", POSE_UNITS),
        _tensor("state", (7,), "pose at the last context frame", POSE_UNITS, optional=False),
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
    patches, width = config.encoder.num_patches, config.encoder.dim
    return (
        _tensor("latent", ("B", patches, width), "the world after each step, layer-normed", optional=False),
        _tensor("pose", ("B", 7), "the pose after each step", POSE_UNITS, optional=False),
    )


def _plan_starts() -> tuple[TensorSpec, ...]:
    return (
        _tensor("initial_mean", ("H", 7), "first mean, no rotation, within max_displacement; unset: zeros", POSE_UNITS),
        _tensor("warm_mean", ("W", 4), "mean (x, y, z, gripper) that the session's last plan left", "m"),
    )


def _plan_outputs() -> tuple[TensorSpec, ...]:
    return (
        _tensor("plan_actions", ("H", 7), "the plan so far, after each iteration", POSE_UNITS, optional=False),
        _tensor("plan_cost", (2,), "cost of the best candidate, and mean over the elites", optional=False),
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


def _tensor(
    name: str,
    shape: tuple[int | str, ...],
    doc: str,
    units: str = "",
    *,
    optional: bool = True,
    max_sizes: tuple[tuple[str, int], ...] = (),
) -> TensorSpec:
    max_abs = MAX_POSE if units == POSE_UNITS else MAX_LATENT
    return TensorSpec(name, shape, ("float32",), doc, units, optional=optional, max_sizes=max_sizes, max_abs=max_abs)


def _check_options(name: str, checkpoint: str, options: Mapping[str, Any]) -> None:
    for key in options:
        if key not in KNOWN_OPTIONS:
            raise ConfigError(f"model {name!r}: unknown option {key!r}, {nearest(str(key), KNOWN_OPTIONS)}")
    if "preset" in options and "config" in options:
        raise ConfigError(f"model {name!r} has both options 'preset' and 'config', give one of them")
    seed = options.get("random_seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ConfigError(f"model {name!r}: option 'random_seed' is {seed!r}, expected a whole number from 0")
    if seed is not None and checkpoint:
        raise ConfigError(f"model {name!r} has both a checkpoint and 'random_seed', give one of them")
