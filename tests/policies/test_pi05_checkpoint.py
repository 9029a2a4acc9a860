"""Published layouts are read strictly: every fault is refused by name, and what no action depends on is not needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar_rt.errors import CheckpointError, ConfigError, NotFound
from policies.pi05.checkpoint import load_network, random_network, save_network
from policies.pi05.config import PRESETS, Pi05Config, preset
from policies.pi05.network import Pi05Network
from tests.policies.pi05_paged import TINY_WEIGHTS, tiny_config

PALIGEMMA = "paligemma_with_expert.paligemma."
EMBEDDINGS = f"{PALIGEMMA}model.language_model.embed_tokens.weight"
EXPERT_LAYER = "paligemma_with_expert.gemma_expert.model.layers.0."
LAST_LAYER = f"{PALIGEMMA}model.language_model.layers.1."

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def published() -> Weights:
    return load_file(TINY_WEIGHTS)


def load(weights: Weights, path: Path) -> Pi05Network:
    save_file(weights, path)
    return load_network(tiny_config(), path)


def equal(one: Pi05Network, other: Pi05Network) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def test_openpi_lerobot_and_shards_give_one_network(published: Weights, tmp_path: Path) -> None:
    network = load_network(tiny_config(), TINY_WEIGHTS)
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert equal(network, load({f"model.{key}": value for key, value in published.items()}, tmp_path / "l.safetensors"))

    files = {"a.safetensors": {}, "b.safetensors": {}}
    for index, (key, tensor) in enumerate(published.items()):
        files["ab"[index % 2] + ".safetensors"][key] = tensor
    for name, held in files.items():
        save_file(held, tmp_path / name)
    placed = {key: name for name, held in files.items() for key in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert equal(network, load_network(tiny_config(), tmp_path))


def test_one_of_tied_embeddings_is_enough(published: Weights, tmp_path: Path) -> None:
    table = published[EMBEDDINGS]
    without_head = {key: value for key, value in published.items() if "lm_head" not in key}
    assert torch.equal(load(without_head, tmp_path / "a.safetensors").embed_tokens.weight, table)
    tied = {key: value for key, value in published.items() if key != EMBEDDINGS}
    tied[f"{PALIGEMMA}lm_head.weight"] = table + 1
    assert torch.equal(load(tied, tmp_path / "b.safetensors").embed_tokens.weight, table + 1)


def test_every_key_that_counts_is_needed_and_no_other(published: Weights, tmp_path: Path) -> None:
    unread = {
        f"{PALIGEMMA}lm_head.weight", "paligemma_with_expert.gemma_expert.lm_head.weight",
        f"{PALIGEMMA}model.language_model.norm.weight", f"{LAST_LAYER}self_attn.q_proj.weight",
        f"{LAST_LAYER}self_attn.o_proj.weight", f"{LAST_LAYER}post_attention_layernorm.weight",
        f"{LAST_LAYER}mlp.gate_proj.weight", f"{LAST_LAYER}mlp.up_proj.weight", f"{LAST_LAYER}mlp.down_proj.weight",
    }  # fmt: skip
    for key in published:
        rest = {name: value for name, value in published.items() if name != key and "lm_head" not in name}
        if key in unread:
            load(rest, tmp_path / "w.safetensors")
        else:
            with pytest.raises(CheckpointError, match=f"lacks '{key}'"):
                load(rest, tmp_path / "w.safetensors")


def test_faults_are_named(published: Weights, tmp_path: Path) -> None:
    q, k = f"{EXPERT_LAYER}self_attn.q_proj.weight", f"{EXPERT_LAYER}self_attn.k_proj.weight"
    broken = published["action_in_proj.weight"].clone()
    broken[0, 0] = float("nan")
    faults = [
        ({"scale": torch.ones(1)}, "unknown keys 'scale'"),
        ({"state_proj.weight": torch.ones(32, 8)}, "unknown keys 'state_proj.weight'"),
        ({q: published[k], k: published[q]}, r"q_proj.weight' has shape \[16, 32\], expected \[64, 32\]"),
        ({"action_in_proj.weight": broken}, "NaN or infinity in 'action_in_proj.weight'"),
        ({"model.action_in_proj.bias": torch.ones(32)}, "'action_in_proj.bias' twice"),
        ({"action_in_proj.bias": torch.ones(32, dtype=torch.int32)}, "dtype torch.int32"),
    ]
    for change, message in faults:
        with pytest.raises(CheckpointError, match=message):
            load({**published, **change}, tmp_path / "w.safetensors")
    for name in ("w.pt", "no.safetensors"):
        with pytest.raises(CheckpointError, match=name):
            load_network(tiny_config(), tmp_path / name)


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
def test_what_is_saved_is_what_is_loaded(kind: str, tmp_path: Path) -> None:
    config = Pi05Config.from_dict({**json_of(tiny_config(), tmp_path), "kind": kind})
    network = random_network(config, seed=1)
    save_network(network, tmp_path / "w.safetensors", dtype=torch.float32)
    assert equal(network, load_network(config, tmp_path / "w.safetensors"))
    assert equal(network, random_network(config, seed=1))
    assert not equal(network, random_network(config, seed=2))
    other = Pi05Config.from_dict({**json_of(config, tmp_path), "kind": "pi0" if kind == "pi05" else "pi05"})
    with pytest.raises(CheckpointError, match="lacks"):
        load_network(other, tmp_path / "w.safetensors")


def test_bfloat16_files_and_networks(published: Weights, tmp_path: Path) -> None:
    half = {key: value.to(torch.bfloat16) for key, value in published.items()}
    assert load(half, tmp_path / "w.safetensors").projector.weight.dtype is torch.float32
    network = load_network(tiny_config(), tmp_path / "w.safetensors", dtype=torch.bfloat16)
    assert torch.equal(network.projector.weight, half[f"{PALIGEMMA}model.multi_modal_projector.linear.weight"])


def json_of(config: Pi05Config, folder: Path) -> dict[str, object]:
    config.to_json(folder / "config.json")
    return json.loads((folder / "config.json").read_text())


def test_published_dimensions_are_those_of_the_published_weights() -> None:
    """A few that are known of the file: the number of its parameters, and shapes of some."""
    with torch.device("meta"):
        network = Pi05Network(preset("pi05"))
    assert network.embed_tokens.weight.shape == (257152, 2048)
    assert network.expert.layers[17].self_attn.qkv_proj.weight.shape == (2560, 1024)
    assert network.vision.embeddings.position_embedding.weight.shape == (256, 1152)
    vision = sum(p.numel() for p in network.vision.parameters())
    assert 400e6 < vision < 425e6
    assert 300e6 < sum(p.numel() for p in network.expert.parameters()) - 18 * 2 * 3 * 1024 * 1025 < 330e6


def test_dimensions_are_checked(tmp_path: Path) -> None:
    config = tiny_config()
    config.to_json(tmp_path / "c.json")
    assert Pi05Config.from_json(tmp_path / "c.json") == config
    held = json_of(config, tmp_path)
    faults = [
        ({"hight": 1}, "unknown key 'hight'"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"depth": 2.5}, "'depth' must be a int"),
        ({"kind": "pi1"}, "kind is 'pi1'"),
        ({"num_kv_heads": 3}, "no multiple of num_kv_heads 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"min_period": 5.0}, "0 < min_period < max_period"),
        ({"vision": {**held["vision"], "image_size": 57}}, "no multiple of vision.patch_size"),
        ({"vision": {**held["vision"], "num_heads": 5}}, "no multiple of vision.num_heads"),
        ({"expert": {"width": 32}}, "expert lacks the key 'mlp_dim'"),
        ({"language": 3}, "language must be a mapping"),
    ]
    for change, message in faults:
        with pytest.raises(ConfigError, match=message):
            Pi05Config.from_dict({**held, **change})
    longer = Pi05Config.from_dict({"preset": "pi05", "name": "mine", "action_horizon": 64})
    assert (longer.name, longer.action_horizon, longer.language) == ("mine", 64, preset("pi05").language)
    with pytest.raises(ConfigError, match="unknown key 'horizon'"):
        Pi05Config.from_dict({"preset": "pi05", "horizon": 64})
    assert preset("pi0").takes_state
    assert set(PRESETS) == {"pi05", "pi05_droid", "pi05_libero", "pi0"}
    with pytest.raises(NotFound, match="did you mean 'pi05_droid'"):
        preset("pi05_driod")
    for path in (tmp_path / "none.json", TINY_WEIGHTS):
        with pytest.raises(ConfigError):
            Pi05Config.from_json(path)
