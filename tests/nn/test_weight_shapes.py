"""Safetensors headers, whole or in shards, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import read_safetensors_sections
from mstar_rt.nn.weight_shapes import safetensors_files, safetensors_shapes

INDEX = "model.safetensors.index.json"


def shards(folder: Path, parts: dict[str, dict[str, torch.Tensor]], weight_map: dict[str, Any] | None = None) -> Path:
    for name, tensors in parts.items():
        save_file(tensors, folder / name)
    listed = {key: name for name, tensors in parts.items() for key in tensors}
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": listed if weight_map is None else weight_map})
    )
    return folder / INDEX


ONE, OTHER = {"a.x": torch.ones(2, 3)}, {"b.y": torch.zeros(()), "a.z": torch.ones(1, dtype=torch.bfloat16)}


def test_shapes_stand_in_the_headers(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({**ONE, **OTHER}, path, metadata={"format": "pt"})
    assert safetensors_shapes(path) == {"a.x": (2, 3), "b.y": (), "a.z": (1,)}
    assert safetensors_files(path) == (path,)


def test_a_folder_holds_one_file_or_shards(tmp_path: Path) -> None:
    index = shards(tmp_path, {"1.safetensors": ONE, "2.safetensors": OTHER})
    for path in (index, tmp_path):
        assert safetensors_files(path) == (tmp_path / "1.safetensors", tmp_path / "2.safetensors")
        assert safetensors_shapes(path) == {"a.x": (2, 3), "b.y": (), "a.z": (1,)}
        sections = read_safetensors_sections(path, ("a", "b"))
        assert torch.equal(sections["a"]["x"], ONE["a.x"])
        assert {name: set(held) for name, held in sections.items()} == {"a": {"x", "z"}, "b": {"y"}}
    save_file(ONE, tmp_path / "model.safetensors")
    assert safetensors_files(tmp_path) == (tmp_path / "model.safetensors",)
    assert safetensors_shapes(tmp_path) == {"a.x": (2, 3)}


def test_faults_of_shards_are_named(tmp_path: Path) -> None:
    parts = {"1.safetensors": ONE, "2.safetensors": OTHER}
    good = {"a.x": "1.safetensors", "b.y": "2.safetensors", "a.z": "2.safetensors"}
    cases: list[tuple[Any, str]] = [
        ({**good, "b.w": "2.safetensors"}, "lists 'b.w', which its files lack"),
        ({key: name for key, name in good.items() if key != "a.z"}, "does not list 'a.z', which its files have"),
        ({**good, "b.w": "3.safetensors"}, "no weights file at .*3.safetensors"),
        ({**good, "b.w": "../1.safetensors"}, r"lists '\.\./1\.safetensors', expected the name"),
        ({**good, "b.w": "weights.bin"}, "lists 'weights.bin', expected the name"),
        ({**good, "b.w": 3}, "must map keys"),
        ([], "must map keys"),
    ]
    for weight_map, message in cases:
        with pytest.raises(CheckpointError, match=message):
            safetensors_shapes(shards(tmp_path, parts, weight_map))
    with pytest.raises(CheckpointError, match=r"2\.safetensors has 'a\.x', which another file"):
        safetensors_shapes(shards(tmp_path, {"1.safetensors": ONE, "2.safetensors": {**ONE, **OTHER}}, good))


@pytest.mark.parametrize(
    "content",
    [b"", b"not weights at all", (1 << 40).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]",
     (9).to_bytes(8, "little") + b'{"a": {}}', (8).to_bytes(8, "little") + b"\xff" * 8],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"w\.safetensors is not a readable safetensors file"):
        safetensors_shapes(path)


def test_a_folder_without_weights_and_an_index_without_map_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor model\.safetensors\.index\.json"):
        safetensors_files(tmp_path)
    for content in ("{}", "[]", "not JSON"):
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(CheckpointError, match="is not an index of safetensors files"):
            safetensors_files(tmp_path)
