"""What a served Diffusion Policy declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.policy import PolicySpec, VectorSpec
from policies.diffusion.config import DiffusionConfig, read_config
from policies.diffusion.walks import build_graph
from policies.lerobot.config_file import check_declared
from policies.lerobot.tensors import actions_spec, image_spec, state_spec

MAX_NOISE = 100.0


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:   checkpoint: a folder in LeRobot's published layout, or its `model.safetensors`.
    Raises: ConfigError: an option (there are none), no `config.json`, or one that is not served.
    """
    check_declared(name, checkpoint, options)
    config = read_config(checkpoint)
    return ServedModel(
        name=name,
        family="diffusion",
        doc=f"Diffusion Policy ({config.name}): {config.action_horizon} actions from {config.num_observations} "
        f"observations of {len(config.cameras)} cameras",
        graph=build_graph([camera.name for camera in config.cameras], config.schedule.num_train_steps),
        tasks=(act_task(config),),
        nodes_factory="policies.diffusion.nodes:build_nodes",
        checkpoint=checkpoint,
        facts={"replan_every": config.replan_every},
        policy=PolicySpec(
            action=VectorSpec(config.features.action_size),
            action_horizon=config.action_horizon,
            cameras=config.cameras,
            state=VectorSpec(config.state_size),
            num_observations=config.num_observations,
            normalizations=config.normalization.names(config.features),
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
