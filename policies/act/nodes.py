"""What the nodes of an ACT policy compute. Between nodes all is float32, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from policies.act.checkpoint import load_eye, load_transformer, read_policy
from policies.act.config import read_config
from policies.act.net import Eye, Transformer
from policies.lerobot.statistics import Processor
from policies.lerobot.walks import camera_of, features_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; keep the weights that they need, and no other.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    config, dtype = read_config(model.checkpoint), DTYPES[resources.dtype]
    weights, processor = read_policy(config, model.checkpoint, resources.device)
    given = (config, weights, model.checkpoint, resources.device, dtype)
    makers: dict[str, Callable[[], Any]] = {
        "see": lambda: See(load_eye(*given), processor, dtype),
        "act": lambda: Act(load_transformer(*given), processor, dtype),
    }
    return {name: make() for name, make in makers.items() if name in resources.nodes or not resources.nodes}


class See:
    """image uint8 [H, W, 3] of one camera -> features [P, D] of its places; cameras of one size share a step."""

    def __init__(self, eye: Eye, processor: Processor, dtype: torch.dtype) -> None:
        self._eye, self._processor, self._dtype = eye, processor, dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return call.inputs["image"].shape

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        pixels = [self._processor.pixels(camera_of(call.node), call.inputs["image"]) for call in calls]
        images = torch.stack(pixels).to(self._dtype, memory_format=torch.channels_last)
        return [NodeResult({"features": features}) for features in self._eye(images).float()]


class Act:
    """state [S] and the features of every camera -> actions [H, A], robot units."""

    def __init__(self, transformer: Transformer, processor: Processor, dtype: torch.dtype) -> None:
        self._transformer, self._processor, self._dtype = transformer, processor, dtype
        self._slots = [features_of(camera.name) for camera in transformer.config.cameras]

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        features = [self._stacked(calls, slot).to(self._dtype) for slot in self._slots]
        actions = self._transformer(self._state(calls), features).float()
        return [NodeResult({"actions": self._processor.actions(one)}) for one in actions]

    def _state(self, calls: Sequence[NodeCall]) -> torch.Tensor | None:
        if self._transformer.config.features.state_size is None:
            return None
        return self._processor.state(self._stacked(calls, "state")).to(self._dtype)

    @staticmethod
    def _stacked(calls: Sequence[NodeCall], slot: str) -> torch.Tensor:
        return torch.stack([call.inputs[slot] for call in calls])
