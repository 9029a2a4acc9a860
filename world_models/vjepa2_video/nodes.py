"""What the nodes of V-JEPA 2 without actions compute. Latents are float32 between nodes, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

from mstar_rt.errors import CheckpointError, ConfigError, InvalidArgument
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.processor import checked_finite
from world_models.vjepa2_video.checkpoint import Network, load_network, random_network
from world_models.vjepa2_video.config import VideoConfig
from world_models.vjepa2_video.dimensions import config_for
from world_models.vjepa2_video.net import MaskedPredictor, encode_blocks
from world_models.vjepa2_video.processor import chosen_patches, clip_from
from world_models.vjepa2_video.walks import BLOCKS_PER_STEP, num_steps

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_TOKENS = 8192
"""Patches of all clips in one forward: beyond this nothing is gained and memory grows."""


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; load the networks that they have, and no other.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    asked = resources.nodes or frozenset(node.name for node in model.graph.nodes)
    config = config_for(model.checkpoint, model.options)
    code: dict[str, Any] = {}
    for section, makers in MAKERS.items():
        wanted = {name: make for name, make in makers.items() if name in asked}
        if wanted:
            network = _network(model, config, section, resources.device, DTYPES[resources.dtype])
            code |= {name: make(network) for name, make in wanted.items()}
    return code


def _network(model: ServedModel, config: VideoConfig, section: str, device: str, dtype: torch.dtype) -> Network:
    seed = model.options.get("random_seed")
    if seed is not None:
        return random_network(config, section, seed, device=device, dtype=dtype)
    if not model.checkpoint:
        raise CheckpointError(f"model {model.name!r} has no checkpoint, name its weights file in the deployment")
    encoder_key = model.options.get("encoder_key", "encoder")
    return load_network(config, Path(model.checkpoint), section, encoder_key=encoder_key, device=device, dtype=dtype)


class Embed:
    """frames [T, H, W, 3] -> tokens [N, D], patches [N], encoded (false): what there is to encode of a whole clip."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._dtype = encoder.norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._result(self._embedded(call.inputs["frames"])) for call in calls]

    def _embedded(self, frames: torch.Tensor) -> torch.Tensor:
        clip = clip_from(frames, self._encoder.config.tubelet_size, self._dtype)
        return self._encoder.patch_embed(clip[None])[0]

    @staticmethod
    def _result(
        tokens: torch.Tensor, *, patches: torch.Tensor | None = None, encoded: bool = False, **more: torch.Tensor
    ) -> NodeResult:
        if patches is None:
            patches = torch.arange(len(tokens), device=tokens.device)
        return NodeResult({"tokens": tokens, "patches": patches, "encoded": torch.tensor(encoded), **more})


class Select(Embed):
    """What `Embed` gives, or latents as they are; and the patches that are seen, `context` [C], and predicted,
    `targets` [M]. `context_rows` [C] says which rows of the latents are those of the context."""

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._select(call) for call in calls]

    def _select(self, call: NodeCall) -> NodeResult:
        latents, only_context = call.inputs["latents"], call.params["encode_context_only"]
        if latents is not None and only_context:
            raise InvalidArgument("encode_context_only has the encoder see less of a clip, give frames and no latents")
        tokens = self._embedded(call.inputs["frames"]) if latents is None else self._checked(latents)
        targets, context = chosen_patches(call.inputs["target_patches"], call.inputs["context_patches"], len(tokens))
        if only_context:
            rows = torch.arange(len(context), device=context.device)
            return self._result(tokens[context], patches=context, context_rows=rows, context=context, targets=targets)
        encoded = latents is not None
        return self._result(tokens, encoded=encoded, context_rows=context, context=context, targets=targets)

    def _checked(self, latents: torch.Tensor) -> torch.Tensor:
        num_patches = self._encoder.config.num_patches
        if len(latents) % num_patches:
            raise InvalidArgument(
                f"there are latents of {len(latents)} patches, expected those of a whole clip: a multiple of "
                f"{num_patches}"
            )
        return latents


class Encode:
    """A few blocks of the encoder, the same ones for all calls of a batch; tokens [N, D] -> tokens [N, D]."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._num_steps = num_steps(encoder.config.depth)

    def batch_key(self, call: NodeCall) -> Hashable:
        return call.iteration[-1], call.inputs["tokens"].shape, bool(call.inputs["encoded"])

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        if calls[0].inputs["encoded"]:
            return [NodeResult({"tokens": call.inputs["tokens"]}, leave=True) for call in calls]
        step = calls[0].iteration[-1]
        parts = [self._blocks(step, part) for part in _in_parts(calls, len(calls[0].inputs["tokens"]))]
        is_last = step + 1 == self._num_steps
        return [NodeResult({"tokens": tokens}, leave=is_last) for tokens in torch.cat(parts)]

    def _blocks(self, step: int, calls: Sequence[NodeCall]) -> torch.Tensor:
        tokens, patches = (torch.stack([call.inputs[name] for call in calls]) for name in ("tokens", "patches"))
        return encode_blocks(self._encoder, tokens, patches, step * BLOCKS_PER_STEP, BLOCKS_PER_STEP)


class Read:
    """tokens [N, D] -> latents [N, D] float32, after the encoder's last norm; what is encoded already stays."""

    def __init__(self, encoder: Encoder) -> None:
        self._norm = encoder.norm

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult({"latents": self._latents(call)}) for call in calls]

    def _latents(self, call: NodeCall) -> torch.Tensor:
        tokens = call.inputs["tokens"]
        return tokens if call.inputs["encoded"] else checked_finite(self._norm(tokens).float(), "the encoder")


class Predict:
    """latents [N, D] and which of them are the context -> predicted [M, D] float32."""

    def __init__(self, predictor: MaskedPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return len(call.inputs["context"]), len(call.inputs["targets"])

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        num_tokens = len(calls[0].inputs["context"]) + len(calls[0].inputs["targets"])
        predicted = torch.cat([self._predict(part) for part in _in_parts(calls, num_tokens)])
        return [NodeResult({"predicted": one}) for one in predicted]

    def _predict(self, calls: Sequence[NodeCall]) -> torch.Tensor:
        latents = torch.stack([call.inputs["latents"][call.inputs["context_rows"]] for call in calls]).to(self._dtype)
        context, targets = (torch.stack([call.inputs[name] for call in calls]) for name in ("context", "targets"))
        mask_token = torch.tensor([call.params["mask_token"] for call in calls], device=latents.device)
        return checked_finite(self._predictor(latents, context, targets, mask_token).float(), "the predictor")


def _in_parts(calls: Sequence[NodeCall], num_tokens: int) -> list[Sequence[NodeCall]]:
    """Calls of `num_tokens` tokens each, as many at a time as one forward takes."""
    size = max(1, MAX_TOKENS // num_tokens)
    return [calls[start : start + size] for start in range(0, len(calls), size)]


MAKERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "encoder": {"embed": Embed, "select": Select, "encode": Encode, "read": Read},
    "predictor": {"predict": Predict},
}
