"""A policy that a test can predict, declared by dotted path.

Row i of a chunk is `state[:2] + brightness + i / 100`, where brightness is that of camera "top" divided by 100, plus 1000
if camera "wrist" is there; with chunking, the first `delay` rows are those of the previous actions. `hold_s` makes it slow.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import (
    CameraSpec,
    NodeCall,
    NodeResources,
    NodeResult,
    ParamSpec,
    PolicySpec,
    ServedModel,
    TaskSpec,
    TensorSpec,
    VectorSpec,
)

HORIZON, ACTION, STATE, SIZE = 8, 2, 3, 16
MODES = ("guided", "guided_identity", "prefix")
POLICY = PolicySpec(
    action=VectorSpec(ACTION, ("x", "y"), ("m", "m")),
    action_horizon=HORIZON,
    cameras=(CameraSpec("top", SIZE, SIZE), CameraSpec("wrist", SIZE, SIZE, may_be_masked=True)),
    state=VectorSpec(STATE, ("x", "y", "grip"), ("m", "m", "")),
    takes_instruction=True,
    normalizations=("lab", "field"),
    chunking=MODES,
    max_prefix_delay=4,
)


def policy_task(policy: PolicySpec) -> TaskSpec:
    """The task that fits any policy with the toy's action."""
    times = () if policy.num_observations == 1 else (policy.num_observations,)
    images = tuple(
        TensorSpec(
            each.tensor, (*times, each.height, each.width, 3), ("uint8",), each.name, optional=each.may_be_masked
        )
        for each in policy.cameras
    )
    state = () if policy.state is None else (TensorSpec("state", (*times, policy.state.size), ("float32",), "state"),)
    size = policy.action.size
    previous = TensorSpec(
        "previous_actions", ("K", size), ("float32",), "not executed yet", optional=True,
        max_sizes=(("K", policy.action_horizon),),
    )  # fmt: skip
    noise = TensorSpec("noise", (policy.action_horizon, size), ("float32",), "initial noise", optional=True)
    params = [
        ParamSpec("seed", "int", 0, "seed", minimum=0),
        ParamSpec("num_denoise_steps", "int", 5, "steps", minimum=1, maximum=20),
        ParamSpec("hold_s", "float", 0.0, "how long it takes", minimum=0.0),
        ParamSpec("broken", "bool", False, "raises"),
    ]
    if policy.takes_instruction:
        params.append(ParamSpec("instruction", "str", None, "what to do"))
    if len(policy.normalizations) > 1:
        params.append(ParamSpec("normalization", "str", None, "statistics", choices=policy.normalizations))
    if policy.chunking:
        params += [
            ParamSpec("chunking", "str", "none", "mode", choices=("none", *policy.chunking)),
            ParamSpec("delay", "int", 0, "actions", minimum=0),
            ParamSpec("prefix_attention_horizon", "int", None, "actions", minimum=0, optional=True),
            ParamSpec("schedule", "str", "linear", "decay", choices=("linear", "exponential", "ones", "zeros")),
            ParamSpec("max_guidance_weight", "float", 10.0, "beta", minimum=0.0),
        ]
    outputs = (
        TensorSpec("actions", (policy.action_horizon, size), ("float32",), "actions"),
        TensorSpec("num_denoise_steps", (), ("int64",), "steps that were run"),
    )
    inputs = (*images, *state, previous, noise)
    return TaskSpec("act", "act", inputs, outputs, ("act",), tuple(params), criticality="control")


def anytime_task(policy: PolicySpec) -> TaskSpec:
    """As the plain one, but that it always takes the fewest steps."""
    plain = policy_task(policy)
    fewest = ParamSpec("min_denoise_steps", "int", 2, "never fewer", minimum=1)
    return replace(plain, name="act_anytime", walks=("act_anytime",), params=(*plain.params, fewest))


def toy_policy(policy: PolicySpec = POLICY, name: str = "toy") -> ServedModel:
    task = policy_task(policy)
    tasks = (task,) if policy.anytime_task is None else (task, anytime_task(policy))
    act = GraphNode("act", tuple(spec.name for spec in task.inputs), ("actions", "num_denoise_steps"))
    walks = tuple(Walk(each.name, act, emit=("actions", "num_denoise_steps")) for each in tasks)
    graph = WalkGraph(nodes=(act,), walks=walks)
    return ServedModel(name, "toy_policy", "A policy for tests.", graph, tasks, "toy_policy:build_nodes", policy=policy)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    return toy_policy(name=name)


def chunk_of(tensors: Mapping[str, np.ndarray | None], delay: int, horizon: int = HORIZON) -> np.ndarray:
    top, state = np.asarray(tensors["image_top"]), np.asarray(tensors["state"])
    brightness = float(top.mean()) / 100
    if tensors.get("image_wrist") is not None:
        brightness += 1000
    rows = np.arange(horizon, dtype=np.float32)[:, None] / 100
    actions = (state.reshape(-1, state.shape[-1])[-1, :ACTION] + brightness + rows).astype(np.float32)
    previous = tensors.get("previous_actions")
    if previous is not None:
        frozen = previous[:delay]
        actions[: len(frozen)] = frozen
    return actions


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    return {"act": Act()}


class Act:
    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        import torch

        results = []
        for call in calls:
            if call.params["broken"]:
                raise RuntimeError("/a/secret/path.py is broken")
            time.sleep(call.params["hold_s"])  # a model that takes its time
            tensors = {name: None if value is None else value.numpy() for name, value in call.inputs.items()}
            actions = torch.from_numpy(chunk_of(tensors, int(call.params["delay"])))
            num_steps = call.params.get("min_denoise_steps", call.params["num_denoise_steps"])
            results.append(NodeResult({"actions": actions, "num_denoise_steps": torch.tensor(num_steps)}))
        return results
