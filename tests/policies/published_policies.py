"""The folders that LeRobot wrote for tiny policies, made again from golden data, and what its code answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from weights_by_name import value_of

from mstar_rt.model import NodeCall

WEIGHTS = "model.safetensors"
GOLDEN = Path(__file__).parents[1] / "golden"
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors, dict[str, Any]], None]


@dataclass
class Published:
    """One case of golden data. `files` are the JSON files of its folder, by name; `statistics` the tensors of others."""

    files: dict[str, Any]
    weights: Tensors
    statistics: dict[str, Tensors]
    given: Tensors
    expected: Tensors = field(default_factory=dict)

    def write(self, folder: Path, change: Change | None = None) -> Path:
        """As published; `change` may alter the weights and the JSON files before."""
        weights, files = dict(self.weights), json.loads(json.dumps(self.files))
        if change is not None:
            change(weights, files)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / WEIGHTS)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
        for name, tensors in self.statistics.items():
            save_file(tensors, folder / name)
        return folder

    def write_old(self, folder: Path) -> Path:
        """As published before there were processor files: the statistics beside the weights."""
        modes = self.files["config.json"]["normalization_mapping"]
        names = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "IDENTITY": ()}
        (before,) = (tensors for name, tensors in self.statistics.items() if "pre" in name)
        buffers: Tensors = {}
        features = self.files["config.json"]["input_features"] | self.files["config.json"]["output_features"]
        for key, feature in features.items():
            sides = ("normalize_targets", "unnormalize_outputs") if key == "action" else ("normalize_inputs",)
            for side in sides:
                for name in names[modes[feature["type"]]]:
                    buffers[f"{side}.buffer_{key.replace('.', '_')}.{name}"] = before[f"{key}.{name}"].clone()
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.weights | buffers, folder / WEIGHTS)
        (folder / "config.json").write_text(json.dumps(self.files["config.json"]))
        return folder

    def inputs(self, index: int) -> Tensors:
        """Of the observation `index`, by the names of the task."""
        return {name: tensor[index] for name, tensor in self.given.items()}


def published(golden: str, case: str) -> Published:
    described = json.loads((GOLDEN / f"{golden}.json").read_text())[case]
    held = {
        name.removeprefix(f"{case}."): tensor
        for name, tensor in load_file(GOLDEN / f"{golden}.safetensors").items()
        if name.startswith(f"{case}.")
    }
    one = Published(described["files"], {}, {}, {}, {})
    of_files: dict[str, Tensors] = {}
    for name, tensor in held.items():
        file, found, key = name.partition(".safetensors.")
        if found:
            of_files.setdefault(f"{file}.safetensors", {})[key] = tensor
        elif name.startswith("image_"):
            one.given[name] = _enlarged(tensor, described["pixels_per_block"])
        elif name in ("state", "noise"):
            one.given[name] = tensor
        else:
            one.expected[name] = tensor
    fixed = of_files.pop(WEIGHTS, {})
    shapes = {key: tuple(shape) for key, shape in described["shapes"].items() if key not in fixed}
    one.weights = fixed | {key: torch.from_numpy(value_of(key, shape)) for key, shape in shapes.items()}
    one.statistics = of_files
    return one


def _enlarged(blocks: torch.Tensor, pixels: int) -> torch.Tensor:
    """Images [..., h, w, 3] of squares of one colour, `pixels` along a side."""
    return blocks.repeat_interleave(pixels, -3).repeat_interleave(pixels, -2)


def call(
    node: str, inputs: Mapping[str, Any], iteration: tuple[int, ...] = (), seed: int = 0, **params: Any
) -> NodeCall:
    return NodeCall("request", "", "act", iteration, inputs, params, lambda: 0, node=node, seed=seed)


def run(node: Any, calls: list[NodeCall]) -> list[Tensors]:
    """One step: all calls have to fit into it."""
    assert len({node.batch_key(one) for one in calls}) == 1
    with torch.inference_mode():
        return [dict(result.outputs) for result in node.run(calls)]


def close(got: torch.Tensor | np.ndarray, expected: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(np.asarray(got)), expected, rtol=0, atol=atol)
