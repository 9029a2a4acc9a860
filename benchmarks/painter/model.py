"""A flow over the tokens of a picture, and a decoder of its pixels; random weights, equal in every process.

paint   prompt -> sketch -> [paint]... => preview -> develop -> picture

Each step gives a small preview to whoever waits. Steps and the decoder go over rows of tokens that do not depend on one
another, so the runtime may run them in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec

PROMPT = 16
MAX_STEPS = 1000
DIMENSIONS = {"side": 16, "width": 256, "hidden": 3072, "decoder_hidden": 8192, "tile": 16}
"""`side` tokens each way of `width` numbers; the hidden layers' widths; pixels each way of a token's tile.

Measured on one core of an AMD EPYC: a step 5 ms, the decoder 25 ms.
"""
LIMITS = {"side": 64, "width": 4096, "hidden": 1 << 16, "decoder_hidden": 1 << 16, "tile": 64}

SKETCH = GraphNode("sketch", ("prompt",), ("canvas", "condition"), doc="noise, and the prompt as the steps read it")
PAINT = GraphNode("paint", ("canvas", "condition"), ("next_canvas", "preview"))
DEVELOP = GraphNode("develop", ("next_canvas",), ("picture",))

GRAPH = WalkGraph(
    nodes=(SKETCH, PAINT, DEVELOP),
    walks=(
        Walk(
            "paint",
            Sequential(SKETCH, Loop("painting", PAINT, "steps", MAX_STEPS, carry={"canvas": "next_canvas"}), DEVELOP),
            emit=("preview", "picture"),
        ),
    ),
)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """`options` may change any of DIMENSIONS."""
    if checkpoint:
        raise ConfigError(f"model {name!r}: the painter has random weights, it takes no checkpoint")
    for key, value in options.items():
        if key not in DIMENSIONS:
            raise ConfigError(f"model {name!r}: unknown option {key!r}, {nearest(key, DIMENSIONS)}")
        if not isinstance(value, int) or not 3 <= value <= LIMITS[key]:
            raise ConfigError(f"model {name!r}: {key} is {value!r}, expected 3 to {LIMITS[key]}")
    dimensions = DIMENSIONS | dict(options)
    side, edge = dimensions["side"], dimensions["side"] * dimensions["tile"]
    task = TaskSpec(
        "paint",
        "a picture, and a preview after each step",
        (TensorSpec("prompt", (PROMPT,), ("float32",), "any numbers", max_abs=1e3),),
        (
            TensorSpec("preview", (side, side, 3), ("uint8",), "one pixel a token"),
            TensorSpec("picture", (edge, edge, 3), ("uint8",), "RGB"),
        ),
        ("paint",),
        (
            ParamSpec("steps", "int", 20, "steps of the flow", minimum=1, maximum=MAX_STEPS),
            ParamSpec("seed", "int", 0, "of the noise", minimum=0),
        ),
        criticality="generation",
    )
    return ServedModel(
        name,
        "painter",
        "paints, meaninglessly",
        GRAPH,
        (task,),
        "benchmarks.painter.nodes:build_nodes",
        facts=dimensions,
    )
