"""The action-conditioned predictor as the public repository has it, in plain torch. Shares no code with ours.

Every call embeds all frames and runs all layers over all of them under a dense boolean mask. Each frame's condition
tokens go through the query-key-value layer on their own, rotary angles are worked out where they are needed, and all
frames are projected back, whichever one the caller reads. Parameter names are those of the published weights.
Source: arXiv 2506.09985, section 3.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor

NORM_EPS = 1e-6


class NativePredictor(nn.Module):
    """[B, T, P, D] latents, [B, T, 7] actions and states -> [B, T, P, D]: each frame's successor, raw.

    Runs in float32, and in bfloat16 under torch.autocast, which is how the public code does it.
    """

    attn_mask: torch.Tensor

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.predictor_embed = nn.Linear(config.latent_dim, config.dim)
        self.action_encoder = nn.Linear(config.action_dim, config.dim)
        self.state_encoder = nn.Linear(config.state_dim, config.dim)
        self.extrinsics_encoder = nn.Linear(config.extrinsics_dim, config.dim)
        self.predictor_blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.predictor_norm = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.predictor_proj = nn.Linear(config.dim, config.latent_dim)
        mask = _frame_causal_mask(config.max_frames, config.frame_tokens)
        self.register_buffer("attn_mask", mask, persistent=False)
        self.num_calls = 0

    @classmethod
    def like(cls, predictor: ActionPredictor) -> NativePredictor:
        """The same weights in float32, every key of them and no other."""
        native = cls(predictor.config)
        native.load_state_dict({key: value.float() for key, value in predictor.state_dict().items()}, strict=True)
        return native.eval()

    def forward(self, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        num_frames, num_conditions = latents.shape[1], self.config.num_condition_tokens
        action, state = self.action_encoder(actions), self.state_encoder(states)
        x = torch.cat([action[:, :, None], state[:, :, None], self.predictor_embed(latents)], dim=2).flatten(1, 2)
        mask = self.attn_mask[: x.shape[1], : x.shape[1]].to(x.device)
        for block in self.predictor_blocks:
            x = block(x, num_frames, mask)
        patches = x.unflatten(1, (num_frames, -1))[:, :, num_conditions:]
        return self.predictor_proj(self.predictor_norm(patches))


class _Block(nn.Module):
    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.attn = _Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.mlp = _Mlp(config)

    def forward(self, x: torch.Tensor, num_frames: int, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), num_frames, mask)
        return x + self.mlp(self.norm2(x))


class _Mlp(nn.Module):
    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.mlp_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(config.mlp_dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class _Attention(nn.Module):
    """Rotary attention over (frame, row, column): a third of each head's channels turns by each."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.proj = nn.Linear(config.dim, config.dim)
        self.part = 2 * (config.head_dim // 3 // 2)

    def forward(self, x: torch.Tensor, num_frames: int, mask: torch.Tensor) -> torch.Tensor:
        """x [B, T * frame_tokens, D]."""
        frames = x.unflatten(1, (num_frames, -1))
        num_conditions = self.config.num_condition_tokens
        time = torch.arange(num_frames, device=x.device)
        parts = [self._condition(frames[:, :, index], time) for index in range(num_conditions)]
        parts.append(self._patches(frames[:, :, num_conditions:].flatten(1, 2), num_frames))
        q, k, v = (torch.cat(each, dim=3).flatten(2, 3) for each in zip(*parts, strict=True))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).flatten(2))

    def _condition(self, tokens: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One condition token per frame [B, T, D] -> q, k, v [B, heads, T, 1, head_dim]; turned by its frame only."""
        q, k, v = self._heads(tokens)
        q, k = (torch.cat([_turned(x[..., : self.part], time), x[..., self.part :]], dim=-1) for x in (q, k))
        return tuple(x[:, :, :, None] for x in (q, k, v))

    def _patches(self, tokens: torch.Tensor, num_frames: int) -> tuple[torch.Tensor, ...]:
        """All frames' patches [B, T * P, D] -> q, k, v [B, heads, T, P, head_dim]."""
        q, k, v = self._heads(tokens)
        index = torch.arange(tokens.shape[1], device=tokens.device)
        per_frame, columns = self.config.num_patches, self.config.grid_columns
        positions = (index // per_frame, index % per_frame // columns, index % per_frame % columns)
        q, k = (self._turned_patches(x, positions) for x in (q, k))
        return tuple(x.unflatten(2, (num_frames, -1)) for x in (q, k, v))

    def _turned_patches(self, x: torch.Tensor, positions: tuple[torch.Tensor, ...]) -> torch.Tensor:
        sections = x.split([self.part] * 3 + [x.shape[-1] - 3 * self.part], dim=-1)
        turned = [_turned(section, position) for section, position in zip(sections, positions, strict=False)]
        return torch.cat([*turned, sections[-1]], dim=-1)

    def _heads(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[B, N, D] -> q, k, v [B, heads, N, head_dim]."""
        qkv = self.qkv(tokens).unflatten(-1, (3, self.config.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return qkv.unbind(0)


def _turned(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """x [..., N, C] turned by its positions [N]: pairs of channels are neighbours, their angles are tiled."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = position.float()[:, None] * frequencies
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    first, second = x.unflatten(-1, (half, 2)).unbind(-1)
    return x * cos + torch.stack([-second, first], dim=-1).flatten(-2) * sin


def _frame_causal_mask(num_frames: int, frame_tokens: int) -> torch.Tensor:
    """bool [N, N], true where a token (row) sees another: those of its own frame and of earlier ones."""
    frame = torch.arange(num_frames).repeat_interleave(frame_tokens)
    return frame[:, None] >= frame[None, :]
