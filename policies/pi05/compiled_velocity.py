"""The velocity of a flow's steps as one compiled program over what the cache holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import reserve
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.compiled import Compiled, Example
from mstar_rt.nn.decoder import Attend
from mstar_rt.nn.flow import euler_times
from policies.pi05.expert import Modulation
from policies.pi05.network import Pi05Network

NUM_EXAMPLE_PAGES = 16
MAX_UNPACKED_WIDTH = 256
"""One robot's 16 rows of 128 columns take 0.48 ms a step as they are and 0.57 packed; eight robots' 2.4 and 1.8."""

Velocity = Callable[[torch.Tensor, Modulation, AttentionPlan], torch.Tensor]
"""(x [B, H, action_dim], modulation, plan of one transient block per sequence) -> the like of x."""


def plain_velocity(network: Pi05Network) -> Velocity:
    def velocity(x: torch.Tensor, modulation: Modulation, attention: AttentionPlan) -> torch.Tensor:
        return network.velocity(x, modulation, attention.positions, attention)

    return velocity


class VelocityOverPages:
    """The velocity as a function of tensors alone, with the context gathered from pages: what can be compiled.

    A copy of the context joins the block's own keys and values anyway, so it may as well come from anywhere.
    """

    def __init__(self, network: Pi05Network) -> None:
        self._network = network

    def arguments(
        self, x: torch.Tensor, modulation: Modulation, attention: AttentionPlan
    ) -> tuple[torch.Tensor, ...] | None:
        """What a call is to be given; None where the plan does not say where the context lies."""
        stored = attention.stored()
        if stored is None:
            return None
        turn = torch.view_as_real(self._network.turn(attention.positions, x.shape[1], x.device))
        return x, self._network.expert.shared_or_per_token(modulation, x.shape[1]), turn, *stored

    def __call__(
        self,
        x: torch.Tensor,
        values: torch.Tensor,
        turn: torch.Tensor,
        kv: torch.Tensor,
        pages: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        layers = kv[:, :, pages].flatten(3, 4)
        is_stored = torch.arange(layers.shape[3], device=x.device) < lengths[:, None]
        # What lies behind a sequence may be NaN of another request, which no weight of zero makes harmless.
        layers = torch.where(is_stored[..., None, None], layers, 0)
        is_seen = torch.cat([is_stored, is_stored.new_ones(x.shape[:2])], dim=1)
        hidden = torch.where(is_seen, 0.0, -math.inf).to(kv.dtype)

        def attention_in(layer: int) -> Attend:
            def see(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                k, v = torch.cat([layers[layer, 0], k], dim=1), torch.cat([layers[layer, 1], v], dim=1)
                return attend(q, k, v, causal=False, hidden=hidden)

            return see

        return self._network.expert(x, Modulation(values), turn, attention_in)


class CompiledVelocity:
    """A `Velocity`. Steps that are differentiated run uncompiled.

    It takes seconds for each shape to come into being: one robot or several, one flow time or one per action.
    """

    def __init__(self, network: Pi05Network, device: str) -> None:
        self._network = network
        self._plain = plain_velocity(network)
        self._over_pages = VelocityOverPages(network)
        self._compiled = Compiled(self._over_pages, device)
        with torch.no_grad():
            examples = list(self._examples(device))
        with torch.inference_mode():
            self._compiled.prepare(examples)

    def __call__(self, x: torch.Tensor, modulation: Modulation, attention: AttentionPlan) -> torch.Tensor:
        arguments = None if torch.is_grad_enabled() else self._over_pages.arguments(x, modulation, attention)
        if arguments is None:
            return self._plain(x, modulation, attention)
        return self._compiled(*arguments)

    def _examples(self, device: str) -> Iterator[Example]:
        """Over a cache of their own, so that strides and kinds of tensors are those of serving: what was made outside
        of inference mode is of another kind than what was made inside."""
        config, dtype = self._network.config, self._network.embed_tokens.weight.dtype
        spec = KVSpec(config.depth, config.num_kv_heads, config.head_dim, page_size=16, max_sequence_tokens=64)
        pool = KVPool(spec, NUM_EXAMPLE_PAGES, device, dtype)
        pool.kv.normal_()
        backend, modulation = CpuAttention(pool), self._network.modulation(euler_times(2).to(device))
        for num_sequences in (1, 3):
            tables = [SequenceStore(pool).get(index) for index in range(num_sequences)]
            reserve(tables, [20] * num_sequences)
            per_token = torch.zeros(num_sequences, config.action_horizon, dtype=torch.int64, device=device)
            for times in (0, per_token):
                packs = num_sequences > 1 or config.expert.width > MAX_UNPACKED_WIDTH
                yield Example(partial(self._example, backend, tables, modulation, times), packs)

    def _example(
        self, backend: CpuAttention, tables: Sequence[PageTable], schedule: Modulation, times: int | torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        config, modulation = self._network.config, schedule.rows(times)
        x = torch.randn(len(tables), config.action_horizon, config.action_dim, device=modulation.values.device)
        plan = backend.plan([AttentionStep(table, x.shape[1], StepKind.TRANSIENT_BLOCK) for table in tables])
        arguments = self._over_pages.arguments(x, modulation, plan)
        assert arguments is not None, "nothing is appended"
        return arguments
