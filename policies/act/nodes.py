"""What the nodes of an ACT policy compute. Between nodes all is float32, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel, by_part
from policies.act.checkpoint import load_eye, load_transformer, read_policy
from policies.act.config import read_config
from policies.act.net import Eye, Tokens, Transformer
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
    """image uint8 [H, W, 3] of one camera -> features [P, D] of its places; cameras of one size share a step.

    The layers of the network are the items of a call.
    """

    def __init__(self, eye: Eye, processor: Processor, dtype: torch.dtype) -> None:
        self._eye, self._processor, self._dtype = eye, processor, dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return call.inputs["image"].shape

    def num_items(self, call: NodeCall) -> int:
        return self._eye.num_layers

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        groups = by_part(calls, self._eye.num_layers)
        return [result for layers, group in groups for result in self._run_layers(group, layers)]

    def _run_layers(self, calls: Sequence[NodeCall], layers: range) -> list[NodeResult]:
        x = torch.cat([call.progress for call in calls]) if layers.start else self._images(calls)
        x = self._eye(x, layers)
        if layers.stop < self._eye.num_layers:
            return [NodeResult({}, progress=of_call) for of_call in x.split(1)]
        return [NodeResult({"features": features}) for features in x.float()]

    def _images(self, calls: Sequence[NodeCall]) -> torch.Tensor:
        pixels = [self._processor.pixels(camera_of(call.node), call.inputs["image"]) for call in calls]
        return torch.stack(pixels).to(self._dtype, memory_format=torch.channels_last)


class Act:
    """state [S] and the features of every camera -> actions [H, A], robot units.

    The layers of the transformer are the items of a call.
    """

    def __init__(self, transformer: Transformer, processor: Processor, dtype: torch.dtype) -> None:
        self._transformer, self._processor, self._dtype = transformer, processor, dtype
        self._slots = [features_of(camera.name) for camera in transformer.config.cameras]

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return self._transformer.num_layers

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        groups = by_part(calls, self._transformer.num_layers)
        return [result for layers, group in groups for result in self._run_layers(group, layers)]

    def _run_layers(self, calls: Sequence[NodeCall], layers: range) -> list[NodeResult]:
        transformer = self._transformer
        tokens = Tokens.joined([call.progress for call in calls]) if layers.start else self._begun(calls)
        tokens = transformer.through(tokens, layers)
        if layers.stop < transformer.num_layers:
            return [NodeResult({}, progress=of_call) for of_call in tokens.each()]
        actions = transformer.actions(tokens).float()
        return [NodeResult({"actions": self._processor.actions(one)}) for one in actions]

    def _begun(self, calls: Sequence[NodeCall]) -> Tokens:
        features = [self._stacked(calls, slot).to(self._dtype) for slot in self._slots]
        return self._transformer.begun(self._state(calls), features)

    def _state(self, calls: Sequence[NodeCall]) -> torch.Tensor | None:
        if self._transformer.config.features.state_size is None:
            return None
        return self._processor.state(self._stacked(calls, "state")).to(self._dtype)

    @staticmethod
    def _stacked(calls: Sequence[NodeCall], slot: str) -> torch.Tensor:
        return torch.stack([call.inputs[slot] for call in calls])
