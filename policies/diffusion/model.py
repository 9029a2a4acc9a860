"""What a served Diffusion Policy declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import ConfigError
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.anytime import MIN_DENOISE_STEPS
from mstar_rt.model.policy import PolicySpec, VectorSpec
from policies.anytime.walks import ANYTIME_TASK, with_anytime
from policies.diffusion.config import DiffusionConfig, read_config
from policies.diffusion.walks import build_graph
from policies.lerobot.config_file import check_declared
from policies.lerobot.tensors import actions_spec, image_spec, state_spec

MAX_NOISE = 100.0
USUAL_MIN_TURNS = 10
"""Of policies that run more than twice as many: what arXiv 2303.04137 runs those with that are trained for 100."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:
        checkpoint: a folder in LeRobot's published layout, or its `model.safetensors`.
        options: `min_denoise_steps`, of sessions that allow fewer turns than they ask for.
    Raises: ConfigError: another option or a wrong one, no `config.json`, or one that is not served.
    """
    check_declared(name, checkpoint, options, known=(MIN_DENOISE_STEPS,))
    config = read_config(checkpoint)
    usual, most = config.schedule.num_steps, config.schedule.num_train_steps
    fewest = options.get(MIN_DENOISE_STEPS, max(min(USUAL_MIN_TURNS, usual // 2), 1))
    if not isinstance(fewest, int) or isinstance(fewest, bool) or not 1 <= fewest <= usual:
        raise ConfigError(f"model {name!r}: option {MIN_DENOISE_STEPS!r} is {fewest!r}, expected 1 to {usual}")
    return ServedModel(
        name=name,
        family="diffusion",
        doc=f"Diffusion Policy ({config.name}): {config.action_horizon} actions from {config.num_observations} "
        f"observations of {len(config.cameras)} cameras",
        graph=build_graph([camera.name for camera in config.cameras], config.schedule.num_train_steps),
        tasks=with_anytime(act_task(config), fewest, most),
        nodes_factory="policies.diffusion.nodes:build_nodes",
        checkpoint=checkpoint,
        options=dict(options),
        facts={"replan_every": config.replan_every},
        policy=PolicySpec(
            action=VectorSpec(config.features.action_size),
            action_horizon=config.action_horizon,
            cameras=config.cameras,
            state=VectorSpec(config.state_size),
            num_observations=config.num_observations,
            normalizations=config.normalization.names(config.features),
            anytime_task=ANYTIME_TASK if fewest < usual else None,
        ),
    )


def act_task(config: DiffusionConfig) -> TaskSpec:
    times = () if config.num_observations == 1 else (config.num_observations,)
    size = config.features.action_size
    return TaskSpec(
        "act", "the last observations, oldest first, to a chunk of actions",
        inputs=(
            *(image_spec(camera, times) for camera in config.cameras),
            state_spec(config.state_size, times),
            TensorSpec(
                "noise", (config.horizon, size), ("float32",),
                "what the actions are made of, from the oldest observation's on; unset: drawn by the seed",
                optional=True, max_abs=MAX_NOISE,
            ),
        ),
        outputs=(
            actions_spec(config.action_horizon, size),
            TensorSpec("num_denoise_steps", (), ("int64",), "how often noise was taken off"),
        ),
        walks=("act",),
        params=(
            ParamSpec("seed", "int", 0, "equal seeds draw equal noise, at first and in every step", minimum=0),
            ParamSpec(
                "num_denoise_steps", "int", config.schedule.num_steps, "how often noise is taken off", "steps",
                minimum=1, maximum=config.schedule.num_train_steps,
            ),
        ),
        criticality="control",
    )  # fmt: skip
