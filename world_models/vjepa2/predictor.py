"""The V-JEPA 2-AC predictor: the next frame's latents from frames, actions and states so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from mstar_rt.errors import InvalidArgument
from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.linear import Linear, PreparedLinear
from mstar_rt.nn.rope3d import Rotation, grid_rotation
from mstar_rt.nn.vit import BLOCK_NORM_EPS, Block, dense_attention, initialise, items_at_once, over_heads
from mstar_rt.nn.vit_steps import Norm, StepBlock, StepLayers, step_linear, step_norm
from world_models.vjepa2.config import PredictorConfig


class _StepLayers(NamedTuple):
    """The layers of a predictor as a planned step runs them, under the same names."""

    predictor_embed: Linear | PreparedLinear
    action_encoder: Linear | PreparedLinear
    state_encoder: Linear | PreparedLinear
    extrinsics_encoder: Linear | PreparedLinear
    blocks: list[StepBlock]
    predictor_norm: Norm
    predictor_proj: Linear | PreparedLinear


class ActionPredictor(nn.Module):
    """A transformer over blocks of one frame each: [action, state, (extrinsics), patches].

    Every token sees its whole block and all earlier blocks, so the keys and values of a frame depend on frames up to
    it alone and can be kept. Frame t's patch outputs predict frame t + 1, raw: the caller normalises them before it
    feeds them back. Parameter names are those of the published weights less `module.`; `extrinsics_encoder` is always
    there, and only used when the configuration says so.
    Source: arXiv 2506.09985, section 3.
    """

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.predictor_embed = Linear(config.latent_dim, config.dim)
        self.action_encoder = Linear(config.action_dim, config.dim)
        self.state_encoder = Linear(config.state_dim, config.dim)
        self.extrinsics_encoder = Linear(config.extrinsics_dim, config.dim)
        self.predictor_blocks = nn.ModuleList(
            Block(config.dim, config.num_heads, config.mlp_dim) for _ in range(config.depth)
        )
        self.predictor_norm = nn.LayerNorm(config.dim, eps=BLOCK_NORM_EPS)
        self.predictor_proj = Linear(config.dim, config.latent_dim)
        self._step_layers = StepLayers(self.predictor_embed, self._make_step_layers)
        self._rotations: dict[torch.device, Rotation] = {}
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}
        initialise(self, self.predictor_blocks)

    def forward(
        self,
        latents: torch.Tensor,
        actions: torch.Tensor,
        states: torch.Tensor,
        extrinsics: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Predict the successor of every frame at once (training, and the oracle of the cached step).

        Args:
            latents: [B, T, P, D], normalised.
            actions: [B, T, 7]: end-effector deltas (metres, radians) and gripper delta.
            states: [B, T, 7]: end-effector pose (metres, xyz Euler radians) and gripper closedness.
            extrinsics: [B, T, 6], only with `use_extrinsics`.
        Returns: [B, T, P, D], raw.
        Raises: InvalidArgument: more frames than `max_frames`, or extrinsics that do not fit the configuration.
        """
        num_frames = latents.shape[1]
        self._check_frames(num_frames)
        tokens = self._embed(self, latents, actions, states, extrinsics).flatten(1, 2)
        table = self._rotation(latents.device)
        rotation = Rotation(*(part[:num_frames].flatten(0, 1) for part in table))
        attend = dense_attention(self._mask(num_frames, tokens.dtype, tokens.device))
        for block in self.predictor_blocks:
            tokens = block(tokens, rotation, attend)
        patches = tokens.unflatten(1, (num_frames, -1))[..., self.config.num_condition_tokens :, :]
        return self.predictor_proj(self.predictor_norm(patches))

    def step(
        self,
        latents: torch.Tensor,
        actions: torch.Tensor,
        states: torch.Tensor,
        attention: AttentionPlan,
        extrinsics: torch.Tensor | None = None,
        read: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Predict the successors of M more frames; earlier frames are in the paged cache.

        Equal to `forward` over all frames of each sequence, whatever each one's length.

        Args:
            latents: [M, P, D], normalised. actions, states: [M, 7]. extrinsics: [M, 6], only with `use_extrinsics`.
            attention: M blocks of `frame_tokens` tokens, one or more per sequence, in order.
            read: ascending indices of the frames whose successor is wanted, None for all; the others only go into the
                cache.
        Returns: [len(read), P, D], raw.
        Raises: InvalidArgument: a sequence has `max_frames` frames already.
        """
        layers = self._step_layers.now()
        parts = attention.parts(items_at_once(self.config.frame_tokens, latents.device))
        if len(parts) == 1:
            return self._step_part(layers, self._embed(layers, latents, actions, states, extrinsics), parts[0], read)
        predictions = []
        first = 0
        for part in parts:
            rows = slice(first, first + len(part.positions))
            wanted = None if read is None else [index - first for index in read if first <= index < rows.stop]
            given = None if extrinsics is None else extrinsics[rows]
            tokens = self._embed(layers, latents[rows], actions[rows], states[rows], given)
            predictions.append(self._step_part(layers, tokens, part, wanted))
            first = rows.stop
        return torch.cat(predictions)

    def _step_part(
        self, layers: _StepLayers, tokens: torch.Tensor, attention: AttentionPlan, read: Sequence[int] | None
    ) -> torch.Tensor:
        rotation = self._rotation_at(attention.positions, tokens.device)
        *earlier, last = layers.blocks
        for layer, block in enumerate(earlier):
            tokens = block(tokens, rotation, attention, layer)
        patches = last(tokens, rotation, attention, len(earlier), self.config.num_condition_tokens, read)
        return layers.predictor_proj(layers.predictor_norm(patches))

    def _make_step_layers(self, prepared: bool) -> _StepLayers:
        return _StepLayers(
            predictor_embed=step_linear(self.predictor_embed, prepared),
            action_encoder=step_linear(self.action_encoder, prepared),
            state_encoder=step_linear(self.state_encoder, prepared),
            extrinsics_encoder=step_linear(self.extrinsics_encoder, prepared),
            blocks=[StepBlock(block, prepared) for block in self.predictor_blocks if isinstance(block, Block)],
            predictor_norm=step_norm(self.predictor_norm, prepared),
            predictor_proj=step_linear(self.predictor_proj, prepared),
        )

    def _rotation_at(self, positions: Sequence[int], device: torch.device) -> Rotation:
        """Tables of one frame per sequence, which starts at that token position; one row if all stand at one frame."""
        frames = [position // self.config.frame_tokens for position in positions]
        self._check_frames(max(frames) + 1)
        table = self._rotation(device)
        if min(frames) == max(frames):
            return Rotation(*(part[frames[0]] for part in table))
        index = torch.tensor(frames, device=device)
        return Rotation(*(part[index] for part in table))

    def _embed(
        self,
        layers: ActionPredictor | _StepLayers,
        latents: torch.Tensor,
        actions: torch.Tensor,
        states: torch.Tensor,
        extrinsics: torch.Tensor | None,
    ) -> torch.Tensor:
        """[..., P, D] with one condition of each kind -> [..., frame_tokens, predictor dim]."""
        conditions = [layers.action_encoder(actions), layers.state_encoder(states)]
        if self.config.use_extrinsics:
            if extrinsics is None:
                raise InvalidArgument(
                    "this predictor has use_extrinsics in its configuration and needs extrinsics [B, T, 6]"
                )
            conditions.append(layers.extrinsics_encoder(extrinsics))
        elif extrinsics is not None:
            raise InvalidArgument("this predictor takes no extrinsics; set use_extrinsics in its configuration")
        return torch.cat([torch.stack(conditions, dim=-2), layers.predictor_embed(latents)], dim=-2)

    def _check_frames(self, num_frames: int) -> None:
        if num_frames > self.config.max_frames:
            raise InvalidArgument(
                f"{num_frames} frames are more than this predictor's max_frames {self.config.max_frames}; "
                "shorten the rollout or the context"
            )

    def _rotation(self, device: torch.device) -> Rotation:
        """Tables of all frames, [max_frames, frame_tokens, 1, 1, head_dim / 2], whatever the weights are."""
        if device not in self._rotations:
            config = self.config
            tables = grid_rotation(
                config.max_frames, config.grid_rows, config.grid_columns, config.head_dim,
                num_condition_tokens=config.num_condition_tokens, device=device,
            )  # fmt: skip
            self._rotations[device] = over_heads(tables)
        return self._rotations[device]

    def _mask(self, num_frames: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Additive block-causal mask [N, N]; one frame needs none. Additive, since SDPA would convert it each call."""
        if num_frames == 1:
            return None
        key = (num_frames, dtype, device)
        if key not in self._masks:
            frame = torch.arange(num_frames, device=device).repeat_interleave(self.config.frame_tokens)
            hidden = frame[None, :] > frame[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            self._masks[key] = mask.masked_fill_(hidden, float("-inf"))
        return self._masks[key]
