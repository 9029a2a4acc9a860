"""The network equals published outputs, an oracle written from the description, and transformers' pi0."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar_rt.nn.flow import euler_times
from policies.pi05.checkpoint import load_network, random_network, save_network
from policies.pi05.compiled_velocity import VelocityOverPages
from policies.pi05.config import DecoderConfig, Pi05Config, VisionConfig
from policies.pi05.network import Pi05Network
from tests.policies.pi05_oracle import LANGUAGE, Oracle
from tests.policies.pi05_paged import (
    TINY_WEIGHTS,
    Observations,
    PagedContexts,
    golden_observations,
    golden_tensors,
    tiny_config,
)

GOLDEN_TOLERANCE = 1e-5
ORACLE_TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def tiny() -> Pi05Network:
    return load_network(tiny_config(), TINY_WEIGHTS)


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return golden_tensors()


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=0, atol=tolerance)


def test_the_prefix_is_the_published_one(tiny: Pi05Network, golden: dict[str, torch.Tensor]) -> None:
    given = golden_observations(golden)
    seen = tiny.embed_images(given.images.flatten(0, 1)).unflatten(0, given.images.shape[:2]).flatten(1, 2)
    close(torch.cat([seen, tiny.embed_text(given.ids)], dim=1), golden["prefix_embeds"], GOLDEN_TOLERANCE)


@torch.inference_mode()
def test_dense_velocity_and_actions_are_the_published_ones(tiny: Pi05Network, golden: dict[str, torch.Tensor]) -> None:
    given = golden_observations(golden)
    v = tiny.forward_dense(*given.dense, None, golden["noise"], torch.full((2,), 0.7))
    close(v, golden["velocity_t0.7"], GOLDEN_TOLERANCE)
    context, times, x = tiny.dense_context(*given.dense), tiny.modulation(euler_times(10)), golden["noise"]
    for step in range(10):
        x = x - tiny.dense_velocity(x, times.rows(step), context) / 10
    close(x, golden["actions"], GOLDEN_TOLERANCE)


@pytest.mark.parametrize(("page_size", "extent_pages"), [(16, None), (5, 1)])
@torch.inference_mode()
def test_paged_velocity_and_actions_are_the_published_ones(
    tiny: Pi05Network, golden: dict[str, torch.Tensor], page_size: int, extent_pages: int | None
) -> None:
    paged = PagedContexts(tiny, golden_observations(golden), page_size, extent_pages)
    close(
        paged.velocity(golden["noise"], tiny.modulation(torch.tensor(0.7))), golden["velocity_t0.7"], GOLDEN_TOLERANCE
    )
    before, times, x = paged.pool.kv.clone(), tiny.modulation(euler_times(10)), golden["noise"]
    for step in range(10):
        x = x - paged.velocity(x, times.rows(step)) / 10
    close(x, golden["actions"], GOLDEN_TOLERANCE)
    torch.testing.assert_close(paged.pool.kv, before, rtol=0, atol=0, equal_nan=True)


def odd_config(kind: str) -> Pi05Config:
    """Sizes of which no two are the same by chance, and several key heads."""
    return Pi05Config(
        "odd", VisionConfig(dim=40, depth=2, num_heads=5, mlp_dim=56, image_size=24, patch_size=8),
        DecoderConfig(width=44, mlp_dim=52), DecoderConfig(width=28, mlp_dim=36), depth=3, num_heads=6, num_kv_heads=2,
        head_dim=10, vocab_size=67, action_dim=7, action_horizon=9, kind=kind,
    )  # fmt: skip


def lively(config: Pi05Config, path: Path) -> tuple[Pi05Network, Oracle]:
    """A network of which every parameter is random, those included that begin at zero, and the oracle with the same."""
    network = random_network(config, seed=3)
    generator = torch.Generator().manual_seed(4)
    for parameter in network.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    save_network(network, path, dtype=torch.float32)
    weights = {**load_file(path), **unread_weights(config, generator)}
    save_file(weights, path)
    return load_network(config, path), Oracle(config, weights)


def unread_weights(config: Pi05Config, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The rest of the language model's last layer, which the oracle computes with and no action depends on."""
    width, heads, hidden = config.language.width, config.num_heads * config.head_dim, config.language.mlp_dim
    shapes = {
        "self_attn.q_proj": (heads, width), "self_attn.o_proj": (width, heads), "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden),
    }  # fmt: skip
    last = f"{LANGUAGE}layers.{config.depth - 1}."
    return {f"{last}{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def odd_observations(config: Pi05Config, generator: torch.Generator) -> Observations:
    size = config.vision.image_size
    return Observations(
        images=torch.rand(3, 3, 3, size, size, generator=generator) * 2 - 1,
        image_mask=torch.tensor([[True, False, True], [True, True, True], [False, False, True]]),
        ids=torch.randint(config.vocab_size, (3, 6), generator=generator),
        id_mask=torch.arange(6) < torch.tensor([[4], [1], [6]]),
        state=torch.randn(3, config.action_dim, generator=generator) if config.takes_state else None,
    )


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
@torch.inference_mode()
def test_what_is_compiled_computes_the_same_over_any_pages(kind: str, tmp_path: Path) -> None:
    """Contexts of other lengths beside pages full of NaN; one time, one for every row and one for every action."""
    config, generator = odd_config(kind), torch.Generator().manual_seed(5)
    network, _ = lively(config, tmp_path / "odd.safetensors")
    over_pages = VelocityOverPages(network)
    x = torch.randn(3, config.action_horizon, config.action_dim, generator=generator)
    given, times = odd_observations(config, generator), network.modulation(torch.rand(4, generator=generator))
    per_action = torch.randint(4, (3, config.action_horizon), generator=generator)
    for extent_pages in (None, 1):
        paged = PagedContexts(network, given, page_size=7, extent_pages=extent_pages)
        for index in (torch.tensor(2), torch.tensor([3, 0, 1]), per_action):
            modulation = times.rows(index)
            arguments = over_pages.arguments(x, modulation, paged.transient_plan(x))
            assert arguments is not None
            close(over_pages(*arguments), paged.velocity(x, modulation), 1e-5)


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
@torch.inference_mode()
def test_dense_and_paged_equal_the_oracle(kind: str, tmp_path: Path) -> None:
    """With cameras and text of other lengths in every row, and a time of its own for every row and for every action."""
    config, generator = odd_config(kind), torch.Generator().manual_seed(5)
    network, oracle = lively(config, tmp_path / "odd.safetensors")
    given = odd_observations(config, generator)
    x = torch.randn(3, config.action_horizon, config.action_dim, generator=generator)
    paged = PagedContexts(network, given, page_size=7)
    per_action = torch.rand(3, config.action_horizon, generator=generator)
    per_action[:, :3] = 0.0
    for t in (torch.rand(3, generator=generator), per_action):
        of_actions = t if t.dim() == 2 else t[:, None].expand(x.shape[:2])
        states = [None] * 3 if given.state is None else list(given.state)
        expected = [oracle.velocity(*given.valid(row), states[row], x[row], of_actions[row]) for row in range(3)]
        dense = network.forward_dense(*given.dense, given.state, x, t)
        close(dense, torch.stack(expected), ORACLE_TOLERANCE)
        close(paged.velocity(x, network.modulation(t)), torch.stack(expected), ORACLE_TOLERANCE)


@torch.inference_mode()
def test_several_draws_over_one_prefix_are_as_many_batches(tmp_path: Path) -> None:
    config, generator = odd_config("pi0"), torch.Generator().manual_seed(6)
    network, _ = lively(config, tmp_path / "odd.safetensors")
    given = odd_observations(config, generator)
    x = torch.randn(6, config.action_horizon, config.action_dim, generator=generator)
    t = torch.rand(6, generator=generator)
    together = network.forward_dense(*given.dense, given.state, x, t)
    for draw in range(2):
        alone = network.forward_dense(*given.dense, given.state, x[draw::2], t[draw::2])
        close(together[draw::2], alone, 1e-5)


def test_rows_of_a_modulation_are_those_of_its_times() -> None:
    for kind in ("pi05", "pi0"):
        network = random_network(odd_config(kind), seed=1)
        times = torch.rand(4)
        index = torch.tensor([[0, 3], [2, 2]])
        close(network.modulation(times).rows(index).values, network.modulation(times[index]).values, 1e-6)


@torch.inference_mode()
def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    config, generator = odd_config("pi05"), torch.Generator().manual_seed(7)
    network, _ = lively(config, tmp_path / "odd.safetensors")
    half = load_network(config, tmp_path / "odd.safetensors", dtype=torch.bfloat16)
    given = odd_observations(config, generator)
    x = torch.randn(3, config.action_horizon, config.action_dim, generator=generator)
    t = torch.rand(3, generator=generator)
    expected = network.forward_dense(*given.dense, None, x, t)
    for got in (
        half.forward_dense(*given.dense, None, x, t),
        PagedContexts(half, given).velocity(x, half.modulation(t)),
    ):
        assert got.dtype is torch.float32
        assert (got - expected).norm() / expected.norm() < 0.03


def test_velocity_is_differentiable_over_a_paged_prefix(tmp_path: Path) -> None:
    """As a guided node does it: inside inference mode, with a modulation that was made there."""
    for kind in ("pi05", "pi0"):
        config, generator = odd_config(kind), torch.Generator().manual_seed(8)
        network, _ = lively(config, tmp_path / "odd.safetensors")
        given = odd_observations(config, generator)
        x = torch.randn(3, config.action_horizon, config.action_dim, generator=generator)
        direction = torch.randn(x.shape, generator=generator)
        t = torch.tensor([0.9, 0.3, 0.5])
        with torch.inference_mode():
            paged, modulation = PagedContexts(network, given), network.modulation(t)
            with torch.inference_mode(False), torch.enable_grad():
                at = x.clone().requires_grad_()
                (got,) = torch.autograd.grad(paged.velocity(at, modulation), at, direction)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(network.forward_dense(*given.dense, given.state, at, t), at, direction)
        assert expected.abs().max() > 0.01
        close(got, expected, 1e-5)


def test_a_training_step_reaches_every_parameter() -> None:
    for kind in ("pi05", "pi0"):
        torch.manual_seed(9)
        config = odd_config(kind)
        network = Pi05Network(config)
        given = odd_observations(config, torch.Generator().manual_seed(10))
        x = torch.randn(3, config.action_horizon, config.action_dim)
        losses = []
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(20):
            loss = (network.forward_dense(*given.dense, given.state, x, torch.full((3,), 0.5)) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] * 0.7
        unreached = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().max() > 0]
        assert not unreached


def test_a_state_is_given_exactly_where_it_is_a_token() -> None:
    for kind, state in (("pi05", torch.zeros(3, 7)), ("pi0", None)):
        network, given = random_network(odd_config(kind), seed=2), odd_observations(odd_config(kind), torch.Generator())
        with pytest.raises(AssertionError):
            network.dense_context(*given.dense, state=state)
