"""What a served ACT policy declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.model import ServedModel, TaskSpec
from mstar_rt.model.policy import PolicySpec, VectorSpec
from policies.act.config import ActConfig, read_config
from policies.act.walks import build_graph
from policies.lerobot.config_file import check_declared
from policies.lerobot.tensors import actions_spec, image_spec, state_spec


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:   checkpoint: a folder in LeRobot's published layout, or its `model.safetensors`.
    Raises: ConfigError: an option (there are none), no `config.json`, or one that is not served.
    """
    check_declared(name, checkpoint, options)
    config = read_config(checkpoint)
    state = config.features.state_size
    return ServedModel(
        name=name,
        family="act",
        doc=f"ACT ({config.name}): {config.action_horizon} actions from {len(config.cameras)} cameras",
        graph=build_graph([camera.name for camera in config.cameras], state is not None),
        tasks=(act_task(config),),
        nodes_factory="policies.act.nodes:build_nodes",
        checkpoint=checkpoint,
        facts={"replan_every": config.replan_every},
        policy=PolicySpec(
            action=VectorSpec(config.features.action_size),
            action_horizon=config.action_horizon,
            cameras=config.cameras,
            state=None if state is None else VectorSpec(state),
            normalizations=config.normalization.names(config.features),
        ),
    )


def act_task(config: ActConfig) -> TaskSpec:
    """It draws nothing, so it has no seed; that chunks go on smoothly is the session's temporal ensembling."""
    state = config.features.state_size
    return TaskSpec(
        "act", "what is seen to a chunk of actions",
        inputs=(*(image_spec(camera) for camera in config.cameras), *([] if state is None else [state_spec(state)])),
        outputs=(actions_spec(config.action_horizon, config.features.action_size),),
        walks=("act",),
        criticality="control",
    )  # fmt: skip
