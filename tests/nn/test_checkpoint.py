"""Strict loading of any module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Rows, load_strict, read_safetensors_sections, read_torch_sections, without_prefixes


def weights() -> dict[str, torch.Tensor]:
    return {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}


def load(tensors: dict[str, torch.Tensor]) -> nn.Linear:
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    return load_strict(module, tensors, where="file", device="cpu", dtype=torch.float64)


def test_a_meta_module_gets_copies_in_the_chosen_dtype() -> None:
    given = weights()
    module = load(given)
    assert module.weight.dtype == torch.float64
    given["weight"].zero_()
    assert module.weight.sum() == 6
    module(torch.zeros(1, 3, dtype=torch.float64)).sum().backward()
    assert module.bias.grad is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float) -> None:
    broken = weights()
    broken["weight"][1, 2] = value
    with pytest.raises(CheckpointError, match="file has NaN or infinity in 'weight'"):
        load(broken)


def test_every_fault_is_named_and_nothing_is_loaded() -> None:
    kept = nn.Linear(3, 2)
    before = kept.weight.clone()
    faults = [
        ({"weight": torch.ones(2, 3)}, "file lacks 'bias'"),
        (weights() | {"scale": torch.ones(1)}, "file has unknown keys 'scale'"),
        ({"weigth": torch.ones(2, 3), "bias": torch.zeros(2)}, "lacks 'weight' and has unknown keys 'weigth'"),
        (weights() | {"weight": torch.ones(3, 2)}, r"'weight' has shape \[3, 2\], expected \[2, 3\]"),
        (weights() | {f"extra{i}": torch.ones(1) for i in range(6)}, "'extra0', 'extra1', 'extra2' and 3 more"),
    ]
    for tensors, message in faults:
        with pytest.raises(CheckpointError, match=message):
            load_strict(kept, tensors, where="file", device="cpu", dtype=torch.float32)
    assert torch.equal(kept.weight, before)


def test_a_parameter_that_a_file_splits() -> None:
    parts = {"weight": [Rows("q", 3), Rows("k", 1)], "bias": ["b.q", "b.k"]}
    held = {"q": torch.ones(3, 2), "k": torch.zeros(1, 2), "b.q": torch.ones(2), "b.k": torch.zeros(2)}
    kept = nn.Linear(2, 4)

    def load_split(weights: dict[str, torch.Tensor]) -> nn.Linear:
        return load_strict(kept, weights, where="file", device="cpu", dtype=torch.float32, spelling=parts.__getitem__)

    with pytest.raises(CheckpointError, match=r"'q' has shape \[1, 2\], expected \[3, 2\]"):
        load_split({**held, "q": held["k"], "k": held["q"]})
    with pytest.raises(CheckpointError, match=r"file lacks 'b\.k' and has unknown keys 'bias'"):
        load_split({("bias" if key == "b.k" else key): tensor for key, tensor in held.items()})
    load_split(held)
    assert kept.weight.sum(1).tolist() == [2, 2, 2, 0]
    assert kept.bias.tolist() == [1, 1, 0, 0]


def test_sections_are_split_and_strangers_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a.x.y": torch.ones(1), "b.z": torch.ones(2)}, path)
    sections = read_safetensors_sections(path, ("a", "b"))
    assert {name: set(part) for name, part in sections.items()} == {"a": {"x.y"}, "b": {"z"}}
    with pytest.raises(CheckpointError, match=r"unknown keys 'b\.z'; keys start with a"):
        read_safetensors_sections(path, ("a",))


def test_only_the_sections_asked_for_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({"a": {"x": torch.ones(3)}, "epoch": 7}, path)
    assert read_torch_sections(path, ("a",))["a"]["x"].tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match=r"lacks 'b', .* found: a, epoch"):
        read_torch_sections(path, ("b",))


def test_prefixes_come_off_the_front_only() -> None:
    stripped = without_prefixes({"module.backbone.a.module.b": torch.ones(1)}, ("module.", "backbone."), "file")
    assert list(stripped) == ["a.module.b"]
