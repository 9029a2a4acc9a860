"""Published `.pt` files in all their spellings, our safetensors, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar_rt.errors import CheckpointError, ConfigError, NotFound
from world_models.vjepa2.checkpoint import load_networks, random_networks, save_networks
from world_models.vjepa2.config import VJepa2Config, preset

Weights = dict[str, dict[str, Any]]


@pytest.fixture
def published(tiny_checkpoint: Path) -> Weights:
    return torch.load(tiny_checkpoint, weights_only=True)


def saved(tmp_path: Path, content: Any, name: str = "weights.pt") -> Path:
    path = tmp_path / name
    torch.save(content, path)
    return path


def _respelled(weights: Weights, spell: Callable[[str], str]) -> Weights:
    return {section: {spell(key): value for key, value in part.items()} for section, part in weights.items()}


@pytest.mark.parametrize(
    "spell",
    [
        lambda key: key.replace("backbone.", ""),
        lambda key: key.replace("module.", "").replace("backbone.", ""),
        lambda key: "module." + key,
        lambda key: "_orig_mod." + key,
    ],
)
def test_all_published_prefixes_load(
    published: Weights, spell: Any, tmp_path: Path, tiny_config: VJepa2Config, tiny: Any
) -> None:
    content = _respelled(published, spell)
    content["encoder"]["module.pos_embed"] = torch.zeros(1, 16, 64)
    content |= {"target_encoder": {"x": torch.zeros(1)}, "opt": {"state": {}}, "epoch": 3, "lr": 1e-4, "scaler": None}
    networks = load_networks(tiny_config, saved(tmp_path, content))
    for got, expected in zip(networks, tiny, strict=True):
        for name, weight in expected.state_dict().items():
            assert torch.equal(got.state_dict()[name], weight), name


def test_another_dictionary_may_hold_the_encoder(
    published: Weights, tmp_path: Path, tiny_config: VJepa2Config, tiny: Any
) -> None:
    averaged = {key: 2 * tensor for key, tensor in published["encoder"].items()}
    path = saved(tmp_path, {**published, "target_encoder": averaged})
    networks = load_networks(tiny_config, path, encoder_key="target_encoder")
    assert torch.equal(networks.encoder.norm.weight, 2 * tiny.encoder.norm.weight)
    assert torch.equal(networks.predictor.predictor_norm.weight, tiny.predictor.predictor_norm.weight)
    with pytest.raises(CheckpointError, match=r"lacks 'ema_encoder', .* found: encoder, predictor, target_encoder"):
        load_networks(tiny_config, path, encoder_key="ema_encoder")


def test_safetensors_in_shards_load(tmp_path: Path, tiny_config: VJepa2Config, tiny: Any) -> None:
    whole = tmp_path / "whole.safetensors"
    save_networks(*tiny, whole, dtype=torch.float32)
    tensors = load_file(whole)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for name, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {key: name for name, keys in parts.items() for key in keys}}))
    for path in (index, tmp_path):
        again = load_networks(tiny_config, path)
        assert all(
            torch.equal(a, b) for a, b in zip(again.encoder.parameters(), tiny.encoder.parameters(), strict=True)
        )


def test_safetensors_round_trip_and_chosen_dtype(tmp_path: Path, tiny_config: VJepa2Config, tiny: Any) -> None:
    path = tmp_path / "weights.safetensors"
    save_networks(*tiny, path, dtype=torch.float32)
    again = load_networks(tiny_config, path)
    assert all(torch.equal(a, b) for a, b in zip(again.encoder.parameters(), tiny.encoder.parameters(), strict=True))
    save_networks(*tiny, path)
    small = load_networks(tiny_config, path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in small.predictor.parameters()} == {torch.bfloat16}
    assert path.stat().st_size < 2 * sum(w.numel() for network in tiny for w in network.parameters()) + 20_000


def _without(weights: Weights, section: str, key: str) -> Weights:
    return {name: {k: v for k, v in part.items() if (name, k) != (section, key)} for name, part in weights.items()}


def test_faulty_files_are_refused_by_name(published: Weights, tmp_path: Path, tiny_config: VJepa2Config) -> None:
    embed = "module.predictor_embed.weight"
    wide = _without(published, "predictor", embed)
    wide["predictor"][embed] = torch.zeros(64, 65)
    extra = _without(published, "", "")
    extra["encoder"]["module.cls_token"] = torch.zeros(1)
    twice = _without(published, "", "")
    twice["encoder"]["norm.weight"] = torch.zeros(64)
    cases = [
        (_without(published, "predictor", embed), "predictor lacks 'predictor_embed.weight'"),
        (_without(published, "encoder", "module.backbone.norm.bias"), "encoder lacks 'norm.bias'"),
        (extra, "encoder has unknown keys 'cls_token'"),
        (wide, r"'predictor_embed.weight' has shape \[64, 65\], expected \[64, 64\]"),
        (twice, "'norm.weight' twice"),
        ({"encoder": published["encoder"]}, "lacks 'predictor'"),
        ({**published, "encoder": 3}, "'encoder' must be a dictionary"),
        ({**published, "encoder": {"a": 1}}, r"encoder\['a'\] must be a tensor"),
    ]
    for content, message in cases:
        path = saved(tmp_path, content)
        with pytest.raises(CheckpointError, match=message) as caught:
            load_networks(tiny_config, path)
        assert str(path) in str(caught.value)


def test_files_that_are_no_plain_weights_are_refused(tmp_path: Path, tiny_config: VJepa2Config) -> None:
    pickled = tmp_path / "pickled.pt"
    pickled.write_bytes(pickle.dumps({"encoder": {}}))
    code = saved(tmp_path, {"encoder": {"x": _Danger()}, "predictor": {}}, "code.pt")
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"not weights at all")
    other = tmp_path / "weights.bin"
    other.write_bytes(b"")
    for path in (pickled, code, garbage, other, tmp_path / "missing.pt"):
        with pytest.raises(CheckpointError, match=str(path)):
            load_networks(tiny_config, path)
    assert not _Danger.was_run


class _Danger:
    was_run = False

    def __reduce__(self) -> Any:
        return (_run, ())


def _run() -> None:
    _Danger.was_run = True


def test_random_networks_repeat_and_leave_the_global_generator_alone(tiny_config: VJepa2Config) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second = random_networks(tiny_config, 5), random_networks(tiny_config, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.encoder.norm.weight, second.encoder.norm.weight)
    assert torch.equal(first.predictor.predictor_proj.weight, second.predictor.predictor_proj.weight)


def test_configurations_round_trip_and_are_strict(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for name in ("vit_large", "vit_huge", "vit_giant_xformers", "tabletop"):
        preset(name).to_json(path)
        assert VJepa2Config.from_json(path) == preset(name)
    good = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in good.items() if key != "planner"}))
    assert VJepa2Config.from_json(path) == preset("tabletop")
    cases = [
        ({"encoder": {**good["encoder"], "dims": 3}}, "unknown key 'dims'; did you mean 'dim'"),
        ({"encoder": {**good["encoder"], "dim": "128"}}, "'dim' must be a int"),
        ({"encoder": {**good["encoder"], "num_heads": 16}}, "head size of at least 12"),
        ({"encoder": {**good["encoder"], "image_size": 60}}, "not a multiple"),
        ({"predictor": {**good["predictor"], "latent_dim": 64}}, "must equal encoder.dim"),
        ({"predictor": {**good["predictor"], "grid_rows": 5}}, "grid 5x2"),
        ({"predictor": {**good["predictor"], "max_frames": 0}}, "at least 1"),
        ({"frames_per_second": 0}, "must be positive"),
        ({"planner": {**good["planner"], "samples": 3}}, "planner has an unknown key 'samples'"),
    ]
    for change, message in cases:
        path.write_text(json.dumps(good | change))
        with pytest.raises(ConfigError, match=message):
            VJepa2Config.from_json(path)
    with pytest.raises(NotFound, match="did you mean 'vit_huge'"):
        preset("vit_hug")


def test_the_released_member_has_the_released_sizes() -> None:
    config = preset("vit_giant_xformers")
    assert (config.encoder.head_dim, config.encoder.num_patches, config.predictor.frame_tokens) == (64, 256, 258)
    with torch.device("meta"):
        from world_models.vjepa2.predictor import ActionPredictor

        predictor = ActionPredictor(config.predictor)
    blocks = sum(weight.numel() for weight in predictor.predictor_blocks.parameters())
    assert round(blocks / 1e6) == 302
