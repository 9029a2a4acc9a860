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
from world_models.vjepa2_video import tiles
from world_models.vjepa2_video.checkpoint import Network, load_network, random_network
from world_models.vjepa2_video.config import VideoConfig
from world_models.vjepa2_video.dimensions import config_for
from world_models.vjepa2_video.net import MaskedPredictor, encode_blocks, patch_rotation
from world_models.vjepa2_video.processor import check_num_frames, chosen_patches, clip_from
from world_models.vjepa2_video.tiles import ROUNDS_PER_BLOCK
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
    """frames [T, H, W, 3] -> tokens [N, D], patches [N], encoded (false): what there is to encode of a whole clip.

    Tubelets of frames are embedded one by one: they are the items of a call.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._dtype = encoder.norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        frames: torch.Tensor | None = call.inputs["frames"]
        return 1 if frames is None else max(1, len(frames) // self._encoder.config.tubelet_size)

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._run_one(call) for call in calls]

    def _run_one(self, call: NodeCall) -> NodeResult:
        if call.inputs["frames"] is None:
            return self.result(call, None)
        frames, size = call.inputs["frames"], self._encoder.config.tubelet_size
        check_num_frames(len(frames), size)
        if call.part is None:
            return self.result(call, self._embedded(frames))
        tokens = self._embedded(frames[call.part.start * size : call.part.stop * size])
        per_item, of_all = len(tokens) // len(call.part), call.progress
        if of_all is None:
            of_all = tokens.new_empty(call.num_items * per_item, tokens.shape[1])
        of_all[call.part.start * per_item : call.part.stop * per_item] = tokens
        return self.result(call, of_all) if call.is_last_part else NodeResult({}, progress=of_all)

    def _embedded(self, frames: torch.Tensor) -> torch.Tensor:
        clip = clip_from(frames, self._encoder.config.tubelet_size, self._dtype)
        return self._encoder.patch_embed(clip[None])[0]

    def result(self, call: NodeCall, tokens: torch.Tensor | None) -> NodeResult:
        """What the node gives, from the tokens [N, D] of all frames."""
        assert tokens is not None
        return self._to_encode(tokens)

    @staticmethod
    def _to_encode(
        tokens: torch.Tensor, *, patches: torch.Tensor | None = None, encoded: bool = False, **more: torch.Tensor
    ) -> NodeResult:
        if patches is None:
            patches = torch.arange(len(tokens), device=tokens.device)
        return NodeResult({"tokens": tokens, "patches": patches, "encoded": torch.tensor(encoded), **more})


class Select(Embed):
    """What `Embed` gives, or latents as they are; and the patches that are seen, `context` [C], and predicted,
    `targets` [M]. `context_rows` [C] says which rows of the latents are those of the context."""

    def result(self, call: NodeCall, tokens: torch.Tensor | None) -> NodeResult:
        latents, only_context = call.inputs["latents"], call.params["encode_context_only"]
        if latents is not None and only_context:
            raise InvalidArgument("encode_context_only has the encoder see less of a clip, give frames and no latents")
        tokens = self._checked(latents) if tokens is None else tokens
        targets, context = chosen_patches(call.inputs["target_patches"], call.inputs["context_patches"], len(tokens))
        if only_context:
            rows = torch.arange(len(context), device=context.device)
            return self._to_encode(
                tokens[context], patches=context, context_rows=rows, context=context, targets=targets
            )
        encoded = latents is not None
        return self._to_encode(tokens, encoded=encoded, context_rows=context, context=context, targets=targets)

    def _checked(self, latents: torch.Tensor) -> torch.Tensor:
        num_patches = self._encoder.config.num_patches
        if len(latents) % num_patches:
            raise InvalidArgument(
                f"there are latents of {len(latents)} patches, expected those of a whole clip: a multiple of "
                f"{num_patches}"
            )
        return latents


class Encode:
    """A few blocks of the encoder, the same ones for all calls of a batch; tokens [N, D] -> tokens [N, D].

    The tiles of their rounds are the items of a call.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._num_steps = num_steps(encoder.config.depth)

    def batch_key(self, call: NodeCall) -> Hashable:
        return call.iteration[-1], call.inputs["tokens"].shape, bool(call.inputs["encoded"])

    def num_items(self, call: NodeCall) -> int:
        if call.inputs["encoded"]:
            return 1
        num_rounds = ROUNDS_PER_BLOCK * len(self._blocks_at(call.iteration[-1]))
        return tiles.num_items(num_rounds, len(call.inputs["tokens"]))

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        if calls[0].inputs["encoded"]:
            return [NodeResult({"tokens": call.inputs["tokens"]}, leave=True) for call in calls]
        return _whole_or_part(calls, self._whole, self._part)

    def _whole(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        encoded = torch.cat([self._encoded(batch) for batch in _batches(calls, len(calls[0].inputs["tokens"]))])
        return [self._result(calls[0], tokens) for tokens in encoded]

    def _encoded(self, calls: Sequence[NodeCall]) -> torch.Tensor:
        tokens, patches = (torch.stack([call.inputs[name] for call in calls]) for name in ("tokens", "patches"))
        first = calls[0].iteration[-1] * BLOCKS_PER_STEP
        return encode_blocks(self._encoder, tokens, patches, first, BLOCKS_PER_STEP)

    def _part(self, call: NodeCall, part: range) -> NodeResult:
        config, patches = self._encoder.config, call.inputs["patches"]
        state = call.progress or tiles.begun(call.inputs["tokens"])
        for number, rows in tiles.rounds(part, len(patches)):
            rotation = patch_rotation(patches[rows], config.grid_size, config.head_dim)
            state = tiles.block_round(state, self._blocks_at(call.iteration[-1]), number, rows, rotation)
        return self._result(call, state.after) if call.is_last_part else NodeResult({}, progress=state)

    def _blocks_at(self, step: int) -> Any:
        return self._encoder.blocks[step * BLOCKS_PER_STEP : (step + 1) * BLOCKS_PER_STEP]

    def _result(self, call: NodeCall, tokens: torch.Tensor) -> NodeResult:
        return NodeResult({"tokens": tokens}, leave=call.iteration[-1] + 1 == self._num_steps)


class Read:
    """tokens [N, D] -> latents [N, D] float32, after the encoder's last norm; what is encoded already stays.

    The tiles are the items of a call.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._norm = encoder.norm

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return 1 if call.inputs["encoded"] else tiles.num_items(1, len(call.inputs["tokens"]))

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._run_one(call) for call in calls]

    def _run_one(self, call: NodeCall) -> NodeResult:
        tokens = call.inputs["tokens"]
        if call.part is None:
            return NodeResult({"latents": tokens if call.inputs["encoded"] else self._latents(tokens)})
        state = call.progress or tiles.begun(tokens)
        for _, rows in tiles.rounds(call.part, len(tokens)):
            state = tiles.filled(state, rows, self._latents(tokens[rows]))
        return NodeResult({"latents": state.after}) if call.is_last_part else NodeResult({}, progress=state)

    def _latents(self, tokens: torch.Tensor) -> torch.Tensor:
        return checked_finite(self._norm(tokens).float(), "the encoder")


class Predict:
    """latents [N, D] and which of them are the context -> predicted [M, D] float32.

    Items as those of `Encode`, with one round more before the blocks, that embeds, and one after, that reads.
    """

    def __init__(self, predictor: MaskedPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype
        self._num_rounds = ROUNDS_PER_BLOCK * len(predictor.predictor_blocks) + 2

    def batch_key(self, call: NodeCall) -> Hashable:
        return len(call.inputs["context"]), len(call.inputs["targets"])

    def num_items(self, call: NodeCall) -> int:
        return tiles.num_items(self._num_rounds, len(call.inputs["context"]) + len(call.inputs["targets"]))

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return _whole_or_part(calls, self._whole, self._part)

    def _whole(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        num_tokens = len(calls[0].inputs["context"]) + len(calls[0].inputs["targets"])
        return [_predicted(one) for batch in _batches(calls, num_tokens) for one in self._predict(batch)]

    def _predict(self, calls: Sequence[NodeCall]) -> torch.Tensor:
        latents = torch.stack([self._context(call) for call in calls])
        context, targets = (torch.stack([call.inputs[name] for call in calls]) for name in ("context", "targets"))
        mask_token = torch.tensor([call.params["mask_token"] for call in calls], device=latents.device)
        return self._predictor(latents, context, targets, mask_token)

    def _context(self, call: NodeCall) -> torch.Tensor:
        return call.inputs["latents"][call.inputs["context_rows"]].to(self._dtype)

    def _part(self, call: NodeCall, part: range) -> NodeResult:
        predictor, places = self._predictor, torch.cat([call.inputs["context"], call.inputs["targets"]])
        blocks: Any = predictor.predictor_blocks
        state = call.progress or tiles.begun(places)
        for number, rows in tiles.rounds(part, len(places)):
            if number == 0:
                state = tiles.filled(state, rows, self._embedded(call, rows))
            elif number < self._num_rounds - 1:
                state = tiles.block_round(state, blocks, number - 1, rows, predictor.rotation(places[rows]))
            else:
                state = tiles.next_round(state, rows)
                state = tiles.filled(state, rows, predictor.read(state.tokens[rows]))
        if not call.is_last_part:
            return NodeResult({}, progress=state)
        return _predicted(state.after[len(call.inputs["context"]) :])

    def _embedded(self, call: NodeCall, rows: slice) -> torch.Tensor:
        """Of the tokens of the context, then of the targets, those of `rows` [n, D]."""
        seen = self._predictor.predictor_embed(self._context(call)[rows])
        hidden = self._predictor.mask_tokens[call.params["mask_token"]].flatten()
        return torch.cat([seen, hidden.expand(rows.stop - rows.start - len(seen), -1)])


def _predicted(tokens: torch.Tensor) -> NodeResult:
    return NodeResult({"predicted": checked_finite(tokens.float(), "the predictor")})


def _whole_or_part(
    calls: Sequence[NodeCall],
    run_whole: Callable[[Sequence[NodeCall]], list[NodeResult]],
    run_part: Callable[[NodeCall, range], NodeResult],
) -> list[NodeResult]:
    """Whole calls are computed together, parts one by one; the results are in the order of the calls."""
    together = [call for call in calls if call.part is None]
    whole = iter(run_whole(together) if together else [])
    return [next(whole) if call.part is None else run_part(call, call.part) for call in calls]


def _batches(calls: Sequence[NodeCall], num_tokens: int) -> list[Sequence[NodeCall]]:
    """Calls of `num_tokens` tokens each, as many at a time as one forward takes."""
    size = max(1, MAX_TOKENS // num_tokens)
    return [calls[start : start + size] for start in range(0, len(calls), size)]


MAKERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "encoder": {"embed": Embed, "select": Select, "encode": Encode, "read": Read},
    "predictor": {"predict": Predict},
}
