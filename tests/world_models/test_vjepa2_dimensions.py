"""Dimensions of the action-conditioned family from the weights themselves, and the options that complete them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mstar_rt.errors import CheckpointError, ConfigError
from world_models.vjepa2.checkpoint import Networks, save_networks
from world_models.vjepa2.config import VJepa2Config, preset
from world_models.vjepa2.dimensions import config_for
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.model import declare
from world_models.vjepa2.predictor import ActionPredictor

TOLD = {"image_size": 64, "encoder_heads": 2, "predictor_heads": 2}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def safetensors(tiny: Networks, tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save_networks(*tiny, path)
    return path


@pytest.fixture
def published(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The golden weights, apart from the JSON that lies beside them."""
    return Path(shutil.copy(tiny_checkpoint, tmp_path / "published.pt"))


def test_both_layouts_tell_the_same(tiny_config: VJepa2Config, published: Path, safetensors: Path) -> None:
    for path in (published, safetensors):
        found = config_for(str(path), TOLD)
        assert (found.encoder, found.predictor) == (tiny_config.encoder, tiny_config.predictor)
        assert found.name == path.stem
    assert config_for(str(safetensors), {**TOLD, "use_extrinsics": True}).predictor.frame_tokens == 19


def test_a_declaration_needs_no_torch_for_safetensors(safetensors: Path) -> None:
    script = (
        "import sys; from world_models.vjepa2.model import declare;"
        f"model = declare('m', {str(safetensors)!r}, {TOLD});"
        "assert model.facts['latent_dim'] == 64, model.facts; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=100).returncode == 0


@pytest.mark.parametrize("name", ["vit_large", "vit_huge", "vit_giant_xformers"])
def test_the_published_widths_need_no_option(name: str, tmp_path: Path) -> None:
    """Weights of the real sizes, as the shapes alone: every tensor is one number, repeated."""
    config = preset(name)
    with torch.device("meta"):
        networks = {"encoder": Encoder(config.encoder), "predictor": ActionPredictor(config.predictor)}
    content: dict[str, Any] = {
        section: {f"module.{key}": torch.zeros(1).expand(tensor.shape) for key, tensor in network.state_dict().items()}
        for section, network in networks.items()
    }
    path = tmp_path / f"{name}.pt"
    torch.save({**content, "epoch": 1}, path)
    assert path.stat().st_size < 1_000_000
    assert config_for(str(path), {}) == config


def test_what_weights_do_not_tell_is_asked_for_by_name(published: Path, safetensors: Path, tmp_path: Path) -> None:
    beside = tmp_path / "small.json"
    cases: list[tuple[Path | str, dict[str, Any], type[Exception], str]] = [
        (published, {"image_size": 64}, ConfigError, "encoder is 64 wide, .* give option 'encoder_heads'"),
        (published, {**TOLD, "predictor_heads": 7}, ConfigError, r"predictor\.dim 64 over 7 heads"),
        (safetensors, {**TOLD, "image_size": 60}, ConfigError, "60 is not a multiple"),
        (safetensors, {**TOLD, "image_size": "64"}, ConfigError, "'image_size' is '64', expected a whole number"),
        (safetensors, {**TOLD, "use_extrinsics": 1}, ConfigError, "'use_extrinsics' is 1, expected true or false"),
        (safetensors, {**TOLD, "encoder_key": "target_encoder"}, ConfigError, r"chooses within a \.pt"),
        (published, {**TOLD, "preset": "tabletop"}, ConfigError, "the preset 'tabletop' has it"),
        ("", {"image_size": 64}, ConfigError, "the preset 'tabletop' has it"),
        (tmp_path / "missing.safetensors", {}, CheckpointError, "no weights file"),
        (tmp_path / "missing.pt", {}, CheckpointError, "no weights file"),
    ]
    for path, options, kind, message in cases:
        with pytest.raises(kind, match=message):
            declare("small", str(path), options)
    preset("tabletop").to_json(beside)
    with pytest.raises(ConfigError, match=r"'image_size' counts where .* here .*small\.json has it"):
        declare("small", str(safetensors), TOLD)
    assert config_for(str(safetensors), {}) == preset("tabletop")


def test_weights_without_what_tells_are_refused_by_key(tmp_path: Path, tiny_checkpoint: Path) -> None:
    content = torch.load(tiny_checkpoint, weights_only=True)
    for key, message in (
        ("module.backbone.patch_embed.proj.weight", r"encoder lacks 'patch_embed\.proj\.weight'"),
        ("module.action_encoder.weight", r"predictor lacks 'action_encoder\.weight'"),
    ):
        section = "encoder" if "backbone" in key else "predictor"
        less = {**content, section: {name: value for name, value in content[section].items() if name != key}}
        assert len(less[section]) < len(content[section])
        path = tmp_path / "less.pt"
        torch.save(less, path)
        with pytest.raises(CheckpointError, match=message):
            config_for(str(path), TOLD)


def test_weights_that_tell_their_dimensions_are_served(
    published: Path, make_driver: Any, make_request: Any, golden: dict[str, torch.Tensor]
) -> None:
    frames = golden["video"][0].permute(1, 2, 3, 0).contiguous()
    (served,) = make_driver(TOLD, published).run(make_request("encode", {"frames": frames}))
    assert torch.allclose(served.emitted["latents"][0], golden["frame_latents_normed"][0], atol=1e-5)
