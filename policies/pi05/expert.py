"""The action expert: a decoder over a block of noisy actions, which attends to what the language model stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn import rms_norm
from mstar_rt.nn.decoder import Attend, DecoderLayer, PreparedLayers, norm_of
from mstar_rt.nn.flow import embed_time
from mstar_rt.nn.linear import Linear
from policies.pi05.config import Pi05Config

AttendIn = Callable[[int], Attend]
"""The attention of a layer."""


@dataclass(frozen=True)
class Modulation:
    """What the expert makes of flow times [...] without regard to actions, so once per schedule; float32.

    pi0.5: 1 + scale, shift and gate of every norm, [..., 2 * depth + 1, 3, width]. pi0: the times' part of the first
    layer of the MLP over actions and times, [..., width].
    """

    values: torch.Tensor

    def rows(self, index: torch.Tensor | int) -> Modulation:
        """That of `times[index]`, for an index of any shape: one time, one per sequence [B] or per token [B, H]."""
        return Modulation(self.values[index])


class ActionExpert(nn.Module):
    """Velocity of a block of actions under flow matching.

    pi0.5 takes the flow time through its norms, pi0 beside the actions; pi0 has a token for the state, which sees
    neither actions nor time, so that what others read of it can be stored once.
    """

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        self.config = config
        width = config.expert.width
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        condition_dim = None if config.takes_state else width
        self.layers = nn.ModuleList(
            DecoderLayer(width, *heads, config.expert.mlp_dim, condition_dim) for _ in range(config.depth)
        )
        self._prepared = PreparedLayers(self.layers)
        self.norm = norm_of(width, condition_dim)
        self.action_in_proj = Linear(config.action_dim, width)
        self.action_out_proj = Linear(width, config.action_dim)
        if config.takes_state:
            self.state_proj = Linear(config.action_dim, width)
            self.action_time_mlp_in = Linear(2 * width, width)
            self.action_time_mlp_out = Linear(width, width)
        else:
            self.time_mlp_in = Linear(width, width)
            self.time_mlp_out = Linear(width, width)

    def modulation(self, times: torch.Tensor) -> Modulation:
        """times [...], 1 at noise and 0 at actions."""
        config, dtype = self.config, self.action_in_proj.weight.dtype
        embedded = embed_time(times, config.expert.width, config.min_period, config.max_period).to(dtype)
        if config.takes_state:
            into = self.action_time_mlp_in
            return Modulation(functional.linear(embedded, into.weight[:, config.expert.width :], into.bias).float())
        condition = functional.silu(self.time_mlp_out(functional.silu(self.time_mlp_in(embedded))))
        return Modulation(torch.stack([norm.modulate(condition) for norm in self._norms()], dim=-3).float())

    def forward(self, x: torch.Tensor, modulation: Modulation, turn: torch.Tensor, attend: AttendIn) -> torch.Tensor:
        """x [B, H, A] float32, turn [B, H, 1, head_dim / 2] -> velocity [B, H, A] float32."""
        values = self._over_tokens(modulation.values)
        tokens = self.action_in_proj(x.to(self.action_in_proj.weight.dtype))
        norms: list[rms_norm.Modulation | None] = [None] * (2 * len(self.layers) + 1)
        if self.config.takes_state:
            tokens = self._with_time(tokens, values)
        else:
            parts = values.flatten(-3, -2).unbind(-2)
            norms = [rms_norm.Modulation(*parts[first : first + 3]) for first in range(0, len(parts), 3)]
        for index, layer in enumerate(self._prepared.now()):
            tokens = layer.decode(tokens, turn, attend(index), norms[2 * index], norms[2 * index + 1])
        return self.action_out_proj(self.norm(tokens, norms[-1])).float()

    def remember(self, state: torch.Tensor, turn: torch.Tensor, attend: AttendIn, store: Callable[..., None]) -> None:
        """Run pi0's state token [B, A] through the layers, of which the last only stores: `store(layer, k, v)`."""
        tokens = self.state_proj(state.to(self.state_proj.weight.dtype))[:, None]
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers[:last]):
            tokens = layer(tokens, turn, attend(index))
        layer = self.layers[last]
        assert isinstance(layer, DecoderLayer)
        store(last, *layer.keys_values(tokens, turn))

    def _with_time(self, tokens: torch.Tensor, of_time: torch.Tensor) -> torch.Tensor:
        """The MLP over actions and time, of which the time's part is computed."""
        of_actions = functional.linear(tokens, self.action_time_mlp_in.weight[:, : tokens.shape[-1]])
        return self.action_time_mlp_out(functional.silu(of_actions + of_time.to(tokens.dtype)))

    def _norms(self) -> list[rms_norm.AdaptiveRMSNorm]:
        """In the order in which tokens meet them."""
        norms = [norm for layer in self.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        return [*norms, self.norm]  # type: ignore[list-item]

    def shared_or_per_token(self, modulation: Modulation, num_tokens: int) -> torch.Tensor:
        """The values of a modulation, with those of one time per sequence given to each of its tokens."""
        values = modulation.values
        if self._num_time_dims(values) != 1:
            return values
        return values.unsqueeze(1).expand(-1, num_tokens, *values.shape[1:]).contiguous()

    def _num_time_dims(self, values: torch.Tensor) -> int:
        return values.dim() - (1 if self.config.takes_state else 3)

    def _over_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """A modulation's values, to broadcast over tokens [B, H]."""
        if torch.is_grad_enabled() and values.is_inference():
            values = values.clone()  # autograd keeps no tensors of inference mode
        return values.unsqueeze(1) if self._num_time_dims(values) == 1 else values
