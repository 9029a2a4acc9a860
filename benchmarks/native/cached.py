"""The best rollout loop that can be written by hand in one process: a cache, our linear layers, and no runtime.

One frame block per sequence and step. Keys and values lie in memory that is allocated once, each sequence's in one
piece; rotary tables are worked out once and poses in closed form; there is no mask. Condition tokens go through the
products of the patches, and leave the last layer as soon as their keys and values are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.native.planner import Imagine
from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.norms import normalise_latents
from mstar_rt.nn.rope3d import Rotation, grid_rotation, rotate
from mstar_rt.nn.vit import Block
from world_models.planning.pose import integrate_all
from world_models.vjepa2.predictor import ActionPredictor


class CachedLoop:
    """Rollouts of `num_sequences` action sequences of up to `horizon` steps each, with the layers of `predictor`."""

    def __init__(self, predictor: ActionPredictor, num_sequences: int, horizon: int) -> None:
        self._predictor = predictor
        self._config = config = predictor.config
        self._dtype = predictor.predictor_norm.weight.dtype
        self._num_sequences = num_sequences
        tables = grid_rotation(
            horizon, config.grid_rows, config.grid_columns, config.head_dim,
            num_condition_tokens=config.num_condition_tokens,
        )  # fmt: skip
        self._rotations = [Rotation(*(half[index, :, None, None] for half in tables)) for index in range(horizon)]
        shape = (num_sequences, horizon * config.frame_tokens, config.num_heads, config.head_dim)
        self._keys, self._values = ([torch.zeros(shape, dtype=self._dtype) for _ in range(config.depth)] for _ in "kv")
        self.num_calls = 0

    def rollout(self, latents: torch.Tensor, actions: torch.Tensor, pose: torch.Tensor) -> Iterator[torch.Tensor]:
        """The latent [B, P, D] after each of `actions` [B, H, 7] as it is made, from a frame [P, D] at `pose` [7]."""
        assert len(actions) == self._num_sequences, f"{len(actions)} sequences, laid out for {self._num_sequences}"
        poses = integrate_all(pose, actions).to(self._dtype)
        inputs = actions.to(self._dtype)
        frame = latents.expand(self._num_sequences, *latents.shape)
        for index in range(actions.shape[1]):
            with torch.inference_mode():
                raw = self._step(frame.to(self._dtype), inputs[:, index], poses[:, index], index)
                frame = normalise_latents(raw.float())
            self.num_calls += 1
            yield frame

    def imagination(self, context: torch.Tensor, pose: torch.Tensor) -> Imagine:
        """Candidates imagined from one frame [P, D] at `pose` [7]."""

        def imagine(actions: torch.Tensor) -> torch.Tensor:
            *_, last = self.rollout(context, actions, pose)
            return last

        return imagine

    def _step(self, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor, index: int) -> torch.Tensor:
        """Frame `index` of every sequence, [B, P, D] with [B, 7] each -> its successor [B, P, D], raw."""
        predictor = self._predictor
        conditions = torch.stack([predictor.action_encoder(actions), predictor.state_encoder(states)], dim=1)
        x = torch.cat([conditions, predictor.predictor_embed(latents)], dim=1)
        for layer, block in enumerate(predictor.predictor_blocks):
            assert isinstance(block, Block)
            x = self._layer(layer, block, x, index)
        return predictor.predictor_proj(predictor.predictor_norm(x))

    def _layer(self, layer: int, block: Block, x: torch.Tensor, index: int) -> torch.Tensor:
        config, keys, values = self._config, self._keys[layer], self._values[layer]
        qkv = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, config.num_heads, config.head_dim))
        q, k = rotate(qkv[..., :2, :, :], self._rotations[index]).unbind(-3)
        start, end = index * config.frame_tokens, (index + 1) * config.frame_tokens
        keys[:, start:end], values[:, start:end] = k, qkv[..., 2, :, :]
        if layer == config.depth - 1:
            x, q = x[:, config.num_condition_tokens :], q[:, config.num_condition_tokens :]
        attended = attend(q, keys[:, :end], values[:, :end], causal=False).flatten(-2)
        x = block.attn.proj(attended, residual=x)
        return block.mlp.fc2(block.mlp.fc1(block.norm2(x), activation="gelu"), residual=x)
