"""Published files are used whole, part by part, or refused with the key that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bagel_tiny import IMAGE_IDS, write_folder
from safetensors.torch import load_file, save_file

from generators.bagel.autoencoder import Autoencoder
from generators.bagel.checkpoint import load_autoencoder, load_backbone, load_vision, save_bagel
from generators.bagel.config import AutoencoderConfig, BagelConfig, Defaults, SizeRule, read_config
from generators.bagel.embedders import PositionTable
from generators.bagel.network import MotNetwork, published
from generators.bagel.vision import Vision
from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Weights, shapes_in_file

LAYER = "language_model.model.layers.1."
BACKBONE_KEYS = (
    "language_model.model.embed_tokens.weight", "language_model.lm_head.weight", f"{LAYER}self_attn.k_proj.bias",
    f"{LAYER}self_attn.v_proj_moe_gen.weight", f"{LAYER}self_attn.q_norm_moe_gen.weight",
    f"{LAYER}mlp_moe_gen.down_proj.weight", f"{LAYER}post_attention_layernorm_moe_gen.weight",
    "language_model.model.norm_moe_gen.weight", "vae2llm.weight", "llm2vae.bias", "time_embedder.mlp.2.weight",
    "latent_pos_embed.pos_embed",
)  # fmt: skip
VISION_KEYS = (
    "vit_model.vision_model.embeddings.patch_embedding.weight", "vit_model.vision_model.post_layernorm.bias",
    "vit_model.vision_model.encoder.layers.1.self_attn.q_proj.weight", "connector.fc2.weight", "vit_pos_embed.pos_embed",
)  # fmt: skip
AUTOENCODER_KEYS = ("encoder.down.0.downsample.conv.weight", "decoder.up.1.block.0.norm1.weight")
CASES = [
    *(("backbone", key) for key in BACKBONE_KEYS),
    *(("vision", key) for key in VISION_KEYS),
    *(("autoencoder", key) for key in AUTOENCODER_KEYS),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny")


def load(part: str, folder: Path) -> object:
    config = read_config(folder)
    if part == "backbone":
        return load_backbone(config, folder, IMAGE_IDS)
    return load_vision(config, folder) if part == "vision" else load_autoencoder(config, folder)


def damage(folder: Path, part: str, change: Callable[[Weights], object]) -> None:
    path = folder / ("ae.safetensors" if part == "autoencoder" else "ema.safetensors")
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


@pytest.mark.parametrize(("part", "key"), CASES)
def test_a_key_that_is_missing_of_another_shape_or_not_finite(part: str, key: str, folder: Path) -> None:
    whole = load_file(folder / ("ae.safetensors" if part == "autoencoder" else "ema.safetensors"))[key]
    damage(folder, part, lambda weights: weights.pop(key))
    with pytest.raises(CheckpointError, match=f"lacks '{key}'"):
        load(part, folder)
    damage(folder, part, lambda weights: weights.update({key: torch.cat([whole, whole])}))
    with pytest.raises(CheckpointError, match=rf"'{key}' has shape .*, expected"):
        load(part, folder)
    broken = whole.clone()
    broken.view(-1)[-1] = float("nan")
    damage(folder, part, lambda weights: weights.update({key: broken}))
    with pytest.raises(CheckpointError, match=rf"NaN or infinity in .*{key}"):
        load(part, folder)
    damage(folder, part, lambda weights: weights.update({key: whole.long()}))
    with pytest.raises(CheckpointError, match=rf"'{key}' has dtype torch.int64, expected floating point"):
        load(part, folder)


@pytest.mark.parametrize("part", ["backbone", "vision", "autoencoder"])
def test_a_key_that_no_part_knows(part: str, folder: Path) -> None:
    strange = "vit_model.vision_model.encoder.layers.2.mlp.fc1.weight"
    damage(folder, part, lambda weights: weights.update({strange: torch.ones(64, 32)}))
    with pytest.raises(CheckpointError, match=f"has unknown keys '{strange}'"):
        load(part, folder)


def test_a_part_does_not_read_the_other_ones(folder: Path) -> None:
    """Values that are not finite are found where they are read, so that this shows what is."""
    nan = float("nan")
    damage(
        folder,
        "vision",
        lambda weights: [weights[key].fill_(nan) for key in weights if key.startswith(("vit", "conn"))],
    )
    load("backbone", folder)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in 'connector.fc1.bias'"):
        load("vision", folder)


def test_files_that_are_not_there_or_none(folder: Path) -> None:
    (folder / "ae.safetensors").write_bytes(b"none")
    with pytest.raises(CheckpointError, match=r"ae.safetensors is not a readable safetensors file"):
        load("autoencoder", folder)
    (folder / "ema.safetensors").unlink()
    for part in ("backbone", "vision"):
        with pytest.raises(CheckpointError, match=r"there is no weights file at .*ema.safetensors"):
            load(part, folder)


def test_a_head_that_is_the_embedding_is_not_in_the_file(folder: Path) -> None:
    config = read_config(folder)
    tied = replace(config, language=replace(config.language, is_tied=True))
    with pytest.raises(CheckpointError, match=r"unknown keys 'language_model.lm_head.weight'"):
        load_backbone(tied, folder, IMAGE_IDS)
    damage(folder, "backbone", lambda weights: weights.pop("language_model.lm_head.weight"))
    load_backbone(tied, folder, IMAGE_IDS)


def test_what_is_saved_is_what_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Golden weights through our modules and back are the same file, in the same layout."""
    config, again = read_config(folder), tmp_path / "tiny again" / "tiny"
    network = MotNetwork(config)
    network.load_state_dict(_as_ours(folder, network, config))
    save_bagel(again, config, network, load_vision(config, folder), load_autoencoder(config, folder))
    assert read_config(again) == config
    for name in ("ema.safetensors", "ae.safetensors"):
        expected, found = load_file(folder / name), load_file(again / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())


def _as_ours(folder: Path, network: MotNetwork, config: BagelConfig) -> Weights:
    weights = load_file(folder / "ema.safetensors")
    return {
        key: torch.cat([weights[name] for name in shapes_in_file(published(key, config), tensor)])
        for key, tensor in network.state_dict().items()
    }


def test_a_model_of_our_own_is_saved_small(folder: Path, tmp_path: Path) -> None:
    """Other dimensions than the published ones come back from config.json, and weights in the dtype asked for."""
    usual = read_config(folder)
    config = replace(
        usual,
        name="own",
        language=replace(usual.language, is_tied=True, depth=1),
        vision=replace(usual.vision, depth=1, table_side=4, max_side=5, patch_size=8),
        autoencoder=AutoencoderConfig(32, (1, 1, 2), 1, 4, scale=0.5, shift=-0.25),
        latent_patch=1,
        max_latent_side=8,
        latent_size=SizeRule(32, 32, 4, 1024),
        vision_size=SizeRule(40, 8, 8),
        think_prompt="",
        defaults=Defaults(height=32, width=32, renormalization="channel", guidance_start=0.0),
    )
    network, vision, autoencoder = MotNetwork(config), Vision(config), Autoencoder(config.autoencoder)
    for module in (*network.modules(), *vision.modules()):
        if isinstance(module, PositionTable):
            module.fill()
    pixels = torch.rand(1, 3, 16, 24) * 2 - 1
    save_bagel(tmp_path / "own", config, network, vision, autoencoder, torch.float16)
    assert read_config(tmp_path / "own") == config
    assert load_file(tmp_path / "own/ema.safetensors")["vae2llm.weight"].dtype is torch.float16
    load_backbone(config, tmp_path / "own", IMAGE_IDS)
    with torch.no_grad():
        loaded = load_vision(config, tmp_path / "own")(pixels)
        torch.testing.assert_close(loaded, vision(pixels), rtol=0, atol=1e-2)
        encoded = load_autoencoder(config, tmp_path / "own").encode(pixels).mean
        torch.testing.assert_close(encoded, autoencoder.encode(pixels).mean, rtol=0, atol=1e-2)
