"""Every published layout of V-JEPA 2 in a tiny file, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from reference_video import IMAGE, published, reference, saved

from mstar_rt.cli import main
from mstar_rt.errors import CheckpointError, ConfigError, NotFound
from world_models.vjepa2_video.checkpoint import load_network, random_network
from world_models.vjepa2_video.config import PRESETS, VideoConfig, preset
from world_models.vjepa2_video.dimensions import config_for
from world_models.vjepa2_video.model import declare

HEADS = {"image_size": IMAGE, "encoder_heads": 3, "predictor_heads": 2}
Networks = dict[str, Any]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return reference()


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(theirs, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def config(folder: Path) -> VideoConfig:
    return config_for(str(folder), {})


@pytest.fixture(scope="module")
def expected(config: VideoConfig, folder: Path) -> Networks:
    return both(config, folder)


def both(config: VideoConfig, path: Path, **options: Any) -> Networks:
    return {section: load_network(config, path, section, **options) for section in ("encoder", "predictor")}


def equal(got: Networks, expected: Networks) -> None:
    for section, network in expected.items():
        for name, weight in network.state_dict().items():
            assert torch.equal(got[section].state_dict()[name], weight), f"{section}.{name}"


def test_a_file_and_shards_load_as_the_folder_does(
    theirs: Any, config: VideoConfig, folder: Path, expected: Networks, tmp_path: Path
) -> None:
    equal(both(config, folder / "model.safetensors"), expected)
    shards = saved(theirs, tmp_path / "shards", max_shard_size="200KB")
    assert len(list(shards.glob("*.safetensors"))) > 3
    for path in (shards, shards / "model.safetensors.index.json"):
        found = config_for(str(path), {})
        assert (found.encoder, found.predictor) == (config.encoder, config.predictor)
        equal(both(found, path), expected)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "module.backbone.", "module.module.backbone.", "_orig_mod.module.backbone."]
)
@pytest.mark.parametrize("with_positions", [False, True])
def test_every_published_file_loads_with_the_dimensions_that_its_weights_tell(
    theirs: Any, expected: Networks, config: VideoConfig, tmp_path: Path, prefix: str, with_positions: bool
) -> None:
    content = published(theirs, prefix, prefix)
    if with_positions:
        content["encoder"][f"{prefix}pos_embed"] = torch.zeros(1, 64, 96)
        content["predictor"][f"{prefix}predictor_pos_embed"] = torch.zeros(1, 64, 48)
    path = tmp_path / "vitx.pt"
    torch.save(content, path)
    found = config_for(str(path), HEADS)
    assert (found.encoder, found.predictor) == (config.encoder, config.predictor)
    assert found.name == "vitx"
    equal(both(found, path), expected)


def test_the_moving_average_of_the_encoder_is_there_for_the_asking(
    theirs: Any, config: VideoConfig, tmp_path: Path
) -> None:
    path = tmp_path / "vitx.pt"
    content = published(theirs)
    torch.save(content, path)
    averaged = load_network(config, path, "encoder", encoder_key="target_encoder")
    assert torch.equal(averaged.norm.weight, 1.01 * theirs.encoder.layernorm.weight)
    del content["encoder"]
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"lacks 'encoder', .*found: predictor, target_encoder"):
        config_for(str(path), HEADS)
    assert config_for(str(path), {**HEADS, "encoder_key": "target_encoder"}).encoder == config.encoder


def _hugging_face(folder: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path)
    return path


FAULTS: list[tuple[str, Callable[[dict[str, torch.Tensor]], Any], str]] = [
    ("encoder", lambda t: t.pop("encoder.layer.1.attention.key.bias"), r"encoder lacks 'layer\.1\.attention\.key\.bias'"),
    ("encoder", lambda t: t.update({"encoder.cls": torch.zeros(1)}), "encoder has unknown keys 'cls'"),
    ("encoder", lambda t: t.update({"encoder.layer.0.attention.value.weight": torch.zeros(96, 95)}),
     r"'layer\.0\.attention\.value\.weight' has shape \[96, 95\], expected \[96, 96\]"),
    ("predictor", lambda t: t.pop("predictor.embeddings.mask_tokens"), r"predictor lacks 'embeddings\.mask_tokens'"),
    ("predictor", lambda t: t.update({"predictor.embeddings.mask_tokens": torch.zeros(2, 1, 1, 48)}),
     r"'embeddings\.mask_tokens' has shape \[2, 1, 1, 48\], expected \[3, 1, 1, 48\]"),
    ("predictor", lambda t: t.update({"predictor.layer.2.norm1.bias": torch.zeros(48)}),
     r"predictor has unknown keys 'layer\.2\.norm1\.bias'"),
    ("predictor", lambda t: t.update({"predictor.proj.bias": torch.zeros(96, dtype=torch.int8)}),
     r"'proj\.bias' has dtype torch\.int8, expected floating point"),
    ("encoder", lambda t: t.update({"classifier.weight": torch.zeros(1)}), r"unknown keys 'classifier\.weight'; keys start"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "change", "message"), FAULTS)
def test_faulty_safetensors_are_refused_by_name(
    folder: Path, config: VideoConfig, tmp_path: Path, section: str, change: Any, message: str
) -> None:
    path = _hugging_face(folder, tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_network(config, path, section)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("predictor", "mask_tokens.1", None, r"predictor lacks 'mask_tokens\.1'"),
        ("predictor", "mask_tokens.3", torch.zeros(1, 1, 48), r"unknown keys 'mask_tokens\.3'"),
        (
            "predictor",
            "predictor_blocks.1.attn.qkv.weight",
            torch.zeros(140, 48),
            r"has shape \[140, 48\], expected \[144, 48\]",
        ),
        ("encoder", "blocks.4.mlp.fc1.bias", None, r"encoder lacks 'blocks\.4\.mlp\.fc1\.bias'"),
    ],
)
def test_faulty_published_files_are_refused_by_name(
    theirs: Any, config: VideoConfig, tmp_path: Path, section: str, key: str, value: Any, message: str
) -> None:
    content = published(theirs)
    if value is None:
        del content[section][f"module.backbone.{key}"]
    else:
        content[section][f"module.backbone.{key}"] = value
    path = tmp_path / "faulty.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        load_network(config, path, section)


def test_a_config_that_differs_from_the_weights_is_refused_by_key(folder: Path, tmp_path: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "hidden_size": 120}))
    with pytest.raises(CheckpointError, match=r"has shape \[.*96.*\], expected \[.*120.*\] from the configured"):
        load_network(VideoConfig.from_hugging_face(path), folder, "encoder")
    path.write_text(json.dumps({**values, "num_hidden_layers": 6}))
    with pytest.raises(CheckpointError, match=r"lacks 'layer\.5\."):
        load_network(VideoConfig.from_hugging_face(path), folder, "encoder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "vit"}, "model_type 'vjepa2'"),
        ({"hidden_act": "silu"}, "hidden_act 'silu', served is 'gelu' alone"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05"),
        ({"qkv_bias": False}, "qkv_bias False"),
        ({"patch_size": [16, 16]}, "'patch_size' must be a whole number"),
        ({"mlp_ratio": "4"}, "'mlp_ratio' must be a number"),
        ({"num_attention_heads": 5}, "even head size"),
        ({"crop_size": 60}, "not a multiple"),
        ({"crop_size": 16}, "one patch"),
        ({"frames_per_clip": 7}, "must be a multiple of the tubelet"),
    ],
)
def test_impossible_or_other_dimensions_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads((folder / "config.json").read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        VideoConfig.from_hugging_face(path)


def test_what_no_file_tells_must_be_told(theirs: Any, folder: Path, tmp_path: Path) -> None:
    published_file, alone = tmp_path / "vitx.pt", tmp_path / "alone.safetensors"
    torch.save(published(theirs), published_file)
    alone.write_bytes((folder / "model.safetensors").read_bytes())
    cases: list[tuple[Path, dict[str, Any], type[Exception], str]] = [
        (published_file, {**HEADS, "encoder_heads": None}, ConfigError, "96 wide, .*'encoder_heads'"),
        (published_file, {**HEADS, "predictor_heads": None}, ConfigError, "48 wide, .*'predictor_heads'"),
        (alone, {}, ConfigError, r"no config\.json beside"),
        (folder, {"image_size": 64}, ConfigError, r"'image_size' counts where .*; here .*config\.json has it"),
        (folder, {"encoder_key": "target_encoder"}, ConfigError, "chooses within a .pt"),
        (published_file, {**HEADS, "encoder_key": "optimizer"}, ConfigError, "expected one of encoder"),
        (published_file, {**HEADS, "image_size": 0}, ConfigError, "'image_size' is 0, expected a whole number"),
        (published_file, {"heads": 3}, ConfigError, "unknown option 'heads'"),
        (published_file, {"preset": "vit_small"}, NotFound, "no V-JEPA 2 preset is called 'vit_small'"),
        (tmp_path / "missing.pt", {}, CheckpointError, "there is no weights file"),
        (tmp_path / "missing", {}, CheckpointError, "there is no weights file"),
    ]
    for path, options, kind, message in cases:
        given = {key: value for key, value in options.items() if value is not None}
        with pytest.raises(kind, match=message):
            declare("tiny", str(path), given)


def test_the_published_members_are_the_presets() -> None:
    sizes = {
        "vit_large": (1024, 24, 16, 4096), "vit_huge": (1280, 32, 16, 5120), "vit_giant_xformers": (1408, 40, 22, 6144),
    }  # fmt: skip
    assert set(PRESETS) == {f"{name}{size}" for name in sizes for size in ("", "_384")}
    for name, size in sizes.items():
        for suffix, num_patches in (("", 256), ("_384", 576)):
            member = preset(name + suffix)
            encoder, predictor = member.encoder, member.predictor
            assert (encoder.dim, encoder.depth, encoder.num_heads, encoder.mlp_dim) == size
            assert (encoder.num_patches, member.max_patches) == (num_patches, 32 * num_patches)
            assert (predictor.dim, predictor.depth, predictor.head_dim, predictor.num_mask_tokens) == (384, 12, 32, 10)


def test_the_format_writes_a_published_member_as_its_preset(tmp_path: Path) -> None:
    from transformers import VJEPA2Config

    for name, ratio in (("vit_giant_xformers_384", 48 / 11), ("vit_large", 4)):
        member = preset(name)
        encoder = member.encoder
        VJEPA2Config(
            hidden_size=encoder.dim, num_hidden_layers=encoder.depth, num_attention_heads=encoder.num_heads,
            mlp_ratio=ratio, crop_size=encoder.image_size,
        ).save_pretrained(tmp_path / name)  # fmt: skip
        assert VideoConfig.from_hugging_face(tmp_path / name / "config.json") == member
        (tmp_path / name / "config.json").write_text('{"model_type": "vjepa2"}')
    assert VideoConfig.from_hugging_face(tmp_path / "vit_large" / "config.json") == preset("vit_large")


def test_random_networks_repeat_in_the_chosen_dtype(config: VideoConfig) -> None:
    first, second = (random_network(config, "predictor", 5, dtype=torch.bfloat16) for _ in range(2))
    assert torch.equal(first.predictor_proj.weight, second.predictor_proj.weight)
    assert {weight.dtype for weight in first.parameters()} == {torch.bfloat16}


def test_check_takes_a_folder_of_weights(tmp_path: Path) -> None:
    folder = saved(reference(), tmp_path / "published")
    data = {"name": "video", "models": [{"name": "video", "family": "vjepa2", "checkpoint": str(folder)}]}
    config = tmp_path / "video.yaml"
    config.write_text(yaml.safe_dump(data))
    assert main(["check", str(config)]) == 0
