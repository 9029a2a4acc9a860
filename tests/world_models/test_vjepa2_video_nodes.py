"""The nodes of V-JEPA 2 without actions: which weights a rank loads, bfloat16, memory, and broken weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from reference_video import IMAGE, PATCHES, reference, saved, some_patches

from mstar_rt.errors import CheckpointError, ConfigError, FailedPrecondition
from mstar_rt.model import NodeCall, NodeResources, ServedModel
from world_models.vjepa2_video import nodes as nodes_module
from world_models.vjepa2_video.model import declare
from world_models.vjepa2_video.nodes import build_nodes

NUM_PATCHES = 2 * PATCHES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(reference(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> ServedModel:
    return declare("tiny", str(folder), {})


def changed(folder: Path, tmp_path: Path, key: str, value: torch.Tensor) -> ServedModel:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, key: value}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    return declare("tiny", str(tmp_path), {})


def call(inputs: Mapping[str, Any], step: int = 0, **params: Any) -> NodeCall:
    return NodeCall(
        "request", "", "predict", (step,), inputs, {"mask_token": 1, "encode_context_only": False, **params}, lambda: 0
    )


def run(node: Any, calls: list[NodeCall]) -> list[dict[str, torch.Tensor]]:
    assert len({node.batch_key(one) for one in calls}) == 1
    with torch.inference_mode():
        return [result.outputs for result in node.run(calls)]


def predict(code: Mapping[str, Any], frames: list[torch.Tensor], targets: list[torch.Tensor]) -> list[torch.Tensor]:
    """The walk `predict` of several requests in one batch, node by node."""
    given = [
        {"frames": one, "latents": None, "context_patches": None, "target_patches": target}
        for one, target in zip(frames, targets, strict=True)
    ]
    states = run(code["select"], [call(one) for one in given])
    for step in range(3):
        tokens = run(code["encode"], [call(state, step) for state in states])
        states = [state | new for state, new in zip(states, tokens, strict=True)]
    states = [
        state | new for state, new in zip(states, run(code["read"], [call(state) for state in states]), strict=True)
    ]
    return [outputs["predicted"] for outputs in run(code["predict"], [call(state) for state in states])]


def requests(count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    frames = [torch.randint(0, 256, (4, IMAGE, IMAGE, 3), dtype=torch.uint8, generator=generator) for _ in range(count)]
    return frames, [some_patches(1, NUM_PATCHES, 7, seed)[0] for seed in range(count)]


def test_a_rank_loads_the_networks_that_its_nodes_have(model: ServedModel, folder: Path, tmp_path: Path) -> None:
    broken = changed(folder, tmp_path, "encoder.layernorm.bias", torch.zeros(3))
    assert set(build_nodes(broken, NodeResources(nodes=frozenset({"predict"})))) == {"predict"}
    with pytest.raises(CheckpointError, match=r"'layernorm\.bias' has shape \[3\]"):
        build_nodes(broken, NodeResources(nodes=frozenset({"encode", "read"})))
    assert set(build_nodes(model, NodeResources())) == {node.name for node in model.graph.nodes}


def test_parts_of_a_batch_give_what_the_whole_gives(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    code = build_nodes(model, NodeResources())
    whole = predict(code, *requests(5))
    monkeypatch.setattr(nodes_module, "MAX_TOKENS", 2 * NUM_PATCHES)
    for one, other in zip(predict(code, *requests(5)), whole, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_bfloat16_stays_near_float32(model: ServedModel) -> None:
    exact = predict(build_nodes(model, NodeResources()), *requests(2))
    rounded = predict(build_nodes(model, NodeResources(dtype="bfloat16")), *requests(2))
    for one, other in zip(rounded, exact, strict=True):
        assert one.dtype == torch.float32
        assert 0 < float((one - other).abs().mean()) < 0.03 * float(other.abs().mean())
    with pytest.raises(ConfigError, match="dtype 'float16' is not served"):
        build_nodes(model, NodeResources(dtype="float16"))


@pytest.mark.parametrize(
    ("key", "size", "network"),
    [("encoder.layernorm.weight", 96, "encoder"), ("predictor.layernorm.weight", 48, "predictor")],
)
def test_weights_that_overflow_are_refused(folder: Path, tmp_path: Path, key: str, size: int, network: str) -> None:
    broken = changed(folder, tmp_path, key, torch.full((size,), 3e38))
    with pytest.raises(FailedPrecondition, match=f"the {network} gives NaN or infinity"):
        predict(build_nodes(broken, NodeResources()), *requests(1))


def test_random_weights_serve_a_preset_and_no_checkpoint_does_not(model: ServedModel) -> None:
    only = NodeResources(nodes=frozenset({"predict"}))
    code = build_nodes(declare("random", "", {"preset": "vit_large", "random_seed": 3}), only)
    assert set(code) == {"predict"}
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        build_nodes(dataclasses.replace(model, checkpoint="", options={"preset": "vit_large"}), only)
