"""What serving does with the network, by hand: prefixes in a paged cache, without padding, and blocks of actions over
them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from mstar_rt.cache.pool import KVPool
from mstar_rt.model.served import KVSpec
from mstar_rt.nn.attention import AttentionBackend, AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from policies.pi05.config import DecoderConfig, Pi05Config, VisionConfig
from policies.pi05.expert import Modulation
from policies.pi05.network import Pi05Network

GOLDEN = Path(__file__).parents[1] / "golden"
TINY_WEIGHTS = GOLDEN / "pi05_tiny.weights.safetensors"


def tiny_config() -> Pi05Config:
    """The dimensions of the golden data."""
    held = json.loads((GOLDEN / "pi05_tiny.json").read_text())
    vision, language, expert = held["vision"], held["vlm"], held["expert"]
    return Pi05Config(
        "tiny",
        VisionConfig(
            vision["hidden"], vision["layers"], vision["heads"], vision["mlp"], vision["image"], vision["patch"]
        ),
        DecoderConfig(language["width"], language["mlp_dim"]),
        DecoderConfig(expert["width"], expert["mlp_dim"]),
        depth=language["depth"],
        num_heads=language["num_heads"],
        num_kv_heads=language["num_kv_heads"],
        head_dim=language["head_dim"],
        vocab_size=held["vocab"],
        action_dim=held["action_dim"],
        action_horizon=held["chunk"],
        min_period=held["min_period"],
        max_period=held["max_period"],
    )


@dataclasses.dataclass(frozen=True)
class Observations:
    """A padded batch, as `forward_dense` takes it."""

    images: torch.Tensor
    image_mask: torch.Tensor
    ids: torch.Tensor
    id_mask: torch.Tensor
    state: torch.Tensor | None = None

    @property
    def dense(self) -> tuple[torch.Tensor, ...]:
        return self.images, self.image_mask, self.ids, self.id_mask

    def valid(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The images and the ids of one row that are no padding."""
        return self.images[row][self.image_mask[row]], self.ids[row][self.id_mask[row]]


def golden_observations(golden: dict[str, torch.Tensor]) -> Observations:
    images, masks = (
        torch.stack([golden[f"{name}_{camera}"] for camera in (0, 1)], 1) for name in ("image", "image_mask")
    )
    return Observations(images, masks, golden["tokens"], golden["token_mask"])


def golden_tensors() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "pi05_tiny.io.safetensors")


class PagedContexts:
    """A prefix for each row of `observations`, in one pool."""

    def __init__(
        self,
        network: Pi05Network,
        observations: Observations,
        page_size: int = 16,
        extent_pages: int | None = None,
        make_backend: Callable[[KVPool], AttentionBackend] = CpuAttention,
    ) -> None:
        config = network.config
        spec = KVSpec(config.depth, config.num_kv_heads, config.head_dim, page_size, max_sequence_tokens=4096)
        self.network = network
        self.pool = KVPool(spec, 256, extent_pages=extent_pages, dtype=network.projector.weight.dtype)
        self.pool.kv.fill_(float("nan"))
        self.backend = make_backend(self.pool)
        rows = [observations.valid(row) for row in range(len(observations.ids))]
        self.tables = [self.pool.new_table() for _ in rows]
        with torch.inference_mode():
            tokens = [torch.cat([*network.embed_images(images), network.embed_text(ids)]) for images, ids in rows]
            positions = torch.cat([torch.arange(len(part)) for part in tokens])
            sizes = [len(part) for part in tokens]
            network.prefill(torch.cat(tokens), positions, self._plan(sizes, StepKind.BLOCK_APPEND))
            if observations.state is not None:
                plan = self._plan([1] * len(rows), StepKind.BLOCK_APPEND)
                network.remember_state(observations.state, plan.positions, plan)

    def velocity(self, x: torch.Tensor, modulation: Modulation) -> torch.Tensor:
        plan = self.transient_plan(x)
        return self.network.velocity(x, modulation, plan.positions, plan)

    def transient_plan(self, x: torch.Tensor) -> AttentionPlan:
        return self._plan([x.shape[1]] * len(x), StepKind.TRANSIENT_BLOCK)

    def _plan(self, sizes: Sequence[int], kind: StepKind) -> AttentionPlan:
        return self.backend.plan([AttentionStep(table, size, kind) for table, size in zip(self.tables, sizes)])
