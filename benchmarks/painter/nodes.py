"""What the painter computes. The canvas is float32 [side, side, width], one vector a token."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.painter.model import PROMPT
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from mstar_rt.nn.flow import embed_time
from mstar_rt.nn.linear import Linear

SEED = 0
MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    dimensions = model.facts
    side, width, tile = dimensions["side"], dimensions["width"], dimensions["tile"]
    nodes = {
        "sketch": lambda: Sketch(side, _weights(1, PROMPT, width)[0]),
        "paint": lambda: Paint(_weights(2, width, dimensions["hidden"], width)),
        "develop": lambda: Develop(_weights(3, width, dimensions["decoder_hidden"], 3 * tile * tile), tile),
    }
    return {name: build() for name, build in nodes.items() if not resources.nodes or name in resources.nodes}


def _weights(seed: int, *widths: int) -> list[Linear]:
    """Layers from each width to the next, in float32 on the CPU whatever the worker has: only their time counts."""
    generator = torch.Generator().manual_seed(SEED + seed)
    layers = []
    for num_in, num_out in itertools.pairwise(widths):
        layer = Linear(num_in, num_out, bias=False).requires_grad_(requires_grad=False)
        nn.init.normal_(layer.weight, std=num_in**-0.5, generator=generator)
        layer.pack()
        layers.append(layer)
    return layers


class Sketch:
    """prompt [PROMPT] -> canvas of noise, condition [width]."""

    def __init__(self, side: int, layer: Linear) -> None:
        self._side = side
        self._layer = layer

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        results = []
        for call in calls:
            canvas = torch.randn(self._side, self._side, self._layer.out_features, generator=call.generator())
            results.append(NodeResult({"canvas": canvas, "condition": self._layer(call.inputs["prompt"])}))
        return results


class ByRows(ABC):
    """A node that goes over rows of tokens: an item is a row, and the calls of a step may differ in theirs."""

    def __init__(self, layers: Sequence[Linear], canvas: str) -> None:
        self._first, self._second = layers
        self._canvas = canvas

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return len(call.inputs[self._canvas])

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        rows = [self._rows(call) for call in calls]
        given = torch.cat([self.tokens(call, own).flatten(0, 1) for call, own in zip(calls, rows, strict=True)])
        made = torch.tanh(self._second(self._first(given, activation="gelu_tanh")))
        side = rows[0].shape[1]
        parts = made.split([len(own) * side for own in rows])
        return [self._settle(call, part.unflatten(0, (-1, side))) for call, part in zip(calls, parts, strict=True)]

    def _rows(self, call: NodeCall) -> torch.Tensor:
        """[rows of this part, side, width]"""
        canvas = call.inputs[self._canvas]
        return canvas if call.part is None else canvas[call.part.start : call.part.stop]

    def _settle(self, call: NodeCall, made: torch.Tensor) -> NodeResult:
        pieces = [*(call.progress or ()), made]
        if not call.is_last_part:
            return NodeResult({}, progress=pieces)
        return NodeResult(self.outputs(call, torch.cat(pieces)))

    def tokens(self, call: NodeCall, rows: torch.Tensor) -> torch.Tensor:
        """What the first layer gets, [rows, side, width]."""
        return rows

    @abstractmethod
    def outputs(self, call: NodeCall, made: torch.Tensor) -> dict[str, torch.Tensor]:
        """`made` [side, side, out]: of all rows, from -1 to 1."""


class Paint(ByRows):
    """One step of the flow: towards what the network makes of the canvas."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        super().__init__(layers, "canvas")

    def tokens(self, call: NodeCall, rows: torch.Tensor) -> torch.Tensor:
        done = torch.tensor(call.iteration[-1] / call.params["steps"])
        return rows + call.inputs["condition"] + embed_time(done, rows.shape[-1], MIN_PERIOD, MAX_PERIOD)

    def outputs(self, call: NodeCall, made: torch.Tensor) -> dict[str, torch.Tensor]:
        canvas = call.inputs["canvas"]
        canvas = canvas + (made - canvas) / (call.params["steps"] - call.iteration[-1])
        return {"next_canvas": canvas, "preview": _pixels(canvas[..., :3])}


class Develop(ByRows):
    """next_canvas -> picture: a tile of pixels per token."""

    def __init__(self, layers: Sequence[Linear], tile: int) -> None:
        super().__init__(layers, "next_canvas")
        self._tile = tile

    def outputs(self, call: NodeCall, made: torch.Tensor) -> dict[str, torch.Tensor]:
        side = len(made)
        tiles = made.view(side, side, self._tile, self._tile, 3)
        return {"picture": _pixels(tiles.transpose(1, 2).reshape(side * self._tile, side * self._tile, 3))}


def _pixels(values: torch.Tensor) -> torch.Tensor:
    """-1 to 1 -> uint8, what is beyond as the nearest of them."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
