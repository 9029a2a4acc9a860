"""The autoencoder and the embedders against diffusers, which implements them apart from BAGEL."""

from __future__ import annotations

import re

import pytest
import torch
from bagel_tiny import GOLDEN, described, golden
from safetensors.torch import load_file

from generators.bagel.autoencoder import Autoencoder, from_tokens, to_tokens
from generators.bagel.config import AutoencoderConfig
from generators.bagel.embedders import PositionTable, TimeEmbedder, grid_ids, sincos_2d, sinusoids

diffusers = pytest.importorskip("diffusers")

SMALL = AutoencoderConfig(channels=32, multipliers=(1, 2, 2), num_blocks=2, latent_channels=4)
RENAMED = (
    (r"\.block\.(\d+)\.", r".resnets.\1."), (r"\.down\.(\d+)\.", r".down_blocks.\1."),
    (r"downsample\.conv", "downsamplers.0.conv"), (r"upsample\.conv", "upsamplers.0.conv"),
    (r"mid\.block_1", "mid_block.resnets.0"), (r"mid\.block_2", "mid_block.resnets.1"),
    (r"attn_1\.norm", "attn_1.group_norm"), (r"attn_1\.([qkv])\.", r"attn_1.to_\1."),
    (r"attn_1\.proj_out", "attn_1.to_out.0"), (r"mid\.attn_1", "mid_block.attentions.0"),
    (r"nin_shortcut", "conv_shortcut"), (r"\.norm_out", ".conv_norm_out"),
)  # fmt: skip


def oracle_of(net: Autoencoder) -> torch.nn.Module:
    """diffusers' autoencoder with the same weights. It counts the decoder's levels from the coarsest."""
    config = net.config
    sizes, depth = [config.channels * each for each in config.multipliers], len(config.multipliers)
    oracle = diffusers.AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * depth, up_block_types=["UpDecoderBlock2D"] * depth,
        block_out_channels=sizes, layers_per_block=config.num_blocks, latent_channels=config.latent_channels,
        norm_num_groups=config.num_groups, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    weights = {}
    for key, tensor in net.state_dict().items():
        name = re.sub(r"\.up\.(\d+)\.", lambda found: f".up_blocks.{depth - 1 - int(found[1])}.", key)
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        weights[name] = tensor.flatten(1) if re.search(r"\.to_\w+\..*weight", name) else tensor
    oracle.load_state_dict(weights)
    return oracle.eval()


@pytest.mark.parametrize("size", [(32, 32), (16, 40)])
def test_the_autoencoder_is_that_of_diffusers(size: tuple[int, int]) -> None:
    """Sums of 3 x 3 x 64 products and norms over 64 x 16 x 16 values in another order: a few roundings of numbers
    around 1 (measured: 2e-6)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Autoencoder(SMALL).eval()
        pixels, latents = torch.rand(2, 3, *size) * 2 - 1, torch.randn(2, 4, size[0] // 4, size[1] // 4)
    oracle = oracle_of(net)
    with torch.no_grad():
        moments, expected = net.encode(pixels), oracle.encode(pixels).latent_dist
        torch.testing.assert_close(moments.mean, expected.mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(moments.log_variance, expected.logvar, rtol=0, atol=1e-5)
        decoded = net.decode(SMALL.scale * (latents - SMALL.shift))
        torch.testing.assert_close(decoded, oracle.decode(latents).sample, rtol=0, atol=1e-5)


def test_the_golden_autoencoder() -> None:
    """Latents of an image as the reference encodes it, by its mean."""
    given, io = described()["vae"], golden()
    config = AutoencoderConfig(given["ch"], tuple(given["ch_mult"]), given["num_res_blocks"], given["z_channels"])
    assert (config.downsample, config.scale, config.shift) == (given["downsample"], given["scale"], given["shift"])
    net = Autoencoder(config)
    net.load_state_dict(load_file(GOLDEN / "bagel_tiny.ae.safetensors"))
    with torch.no_grad():
        found = net.latents(net.encode(io["edit_image"][None]))
        image = net.decode(from_tokens(io["t2i_latents"][None], (8, 8), 2))
    torch.testing.assert_close(found, io["vae_latents_of_edit_image"], rtol=0, atol=1e-5)
    torch.testing.assert_close(image, io["t2i_image"], rtol=0, atol=2e-5)


def test_latents_are_drawn_from_the_moments() -> None:
    net = Autoencoder(SMALL)
    with torch.no_grad():
        moments = net.encode(torch.zeros(1, 3, 8, 8))
    noise = torch.randn(moments.mean.shape, generator=torch.Generator().manual_seed(0))
    drawn = net.latents(moments, noise) - net.latents(moments)
    torch.testing.assert_close(drawn, SMALL.scale * moments.log_variance.exp().sqrt() * noise)


def test_tokens_are_patches_row_by_row_with_channels_innermost() -> None:
    latents = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    tokens = to_tokens(latents, 2)
    assert tokens.shape == (2, 6, 12)
    row, column, p, q, channel = 1, 2, 0, 1, 2
    assert tokens[1, row * 3 + column, (p * 2 + q) * 3 + channel] == latents[1, channel, row * 2 + p, column * 2 + q]
    assert torch.equal(from_tokens(tokens, (2, 3), 2), latents)


def test_sinusoids_are_those_of_diffusers() -> None:
    """Cosines come first. The angles go up to 1000, whose last bit is 6e-5."""
    times = torch.tensor([0.0, 0.3, 1.0, 999.5])
    expected = diffusers.models.embeddings.get_timestep_embedding(
        times, 256, flip_sin_to_cos=True, downscale_freq_shift=0
    )
    torch.testing.assert_close(sinusoids(times), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(sinusoids(times[:3]), expected[:3], rtol=0, atol=1e-6)


def test_times_go_through_two_layers() -> None:
    weights = load_file(GOLDEN / "bagel_tiny.ema.safetensors")
    embedder = TimeEmbedder(64)
    embedder.load_state_dict(
        {
            key.removeprefix("time_embedder."): value
            for key, value in weights.items()
            if key.startswith("time_embedder.")
        }
    )
    expected = diffusers.models.embeddings.TimestepEmbedding(256, 64, act_fn="silu")
    expected.load_state_dict(
        {
            key.replace("mlp.0", "linear_1").replace("mlp.2", "linear_2"): value
            for key, value in embedder.state_dict().items()
        }
    )
    times = torch.tensor([0.0, 0.25, 1.0])
    with torch.no_grad():
        torch.testing.assert_close(embedder(times), expected(sinusoids(times)), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("width", "side"), [(64, 16), (64, 12), (96, 5)])
def test_tables_of_positions_are_those_of_diffusers(width: int, side: int) -> None:
    """Both are made in float64 and differ by how they round to float32."""
    expected = diffusers.models.embeddings.get_2d_sincos_pos_embed(width, side, base_size=side, output_type="pt")
    found = sincos_2d(width, side)
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-7)
    table = PositionTable(width, side)
    table.fill()
    assert torch.equal(table((2, 3)), found[[0, 1, 2, side, side + 1, side + 2]])


def test_tables_of_positions_are_those_in_the_golden_file() -> None:
    weights = load_file(GOLDEN / "bagel_tiny.ema.safetensors")
    for key, side in (("latent_pos_embed", 16), ("vit_pos_embed", 12)):
        torch.testing.assert_close(sincos_2d(64, side), weights[f"{key}.pos_embed"], rtol=0, atol=1e-6)


def test_grids_take_the_first_cells_of_each_row_of_the_table() -> None:
    assert grid_ids((2, 3), 10).tolist() == [0, 1, 2, 10, 11, 12]
