"""A composite model whose walks have something of every kind that can cross between ranks. Declared, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphNode,
    Parallel,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)
from mstar_rt.model import KVSpec, ParamSpec, ServedModel, TaskSpec, TensorSpec

LOOK = GraphNode("look", ("frames",), ("context",))
PREFILL = GraphNode("prefill", ("context",), ("token",), engine="kv_cache", cache="text")
DECODE = GraphNode("decode", ("token",), ("token", "code"), engine="kv_cache", cache="text")
CODEC = GraphNode("codec", ("codes",), ("sound",))
POLISH = GraphNode("polish", ("sound",), ("audio",))
VELOCITY = GraphNode("velocity", ("latent", "context"), ("velocity",))
COMBINE = GraphNode("combine", ("latent", "with_text", "without"), ("latent",))
SHOW = GraphNode("show", ("latent",), ("image",))

TALKING = DynamicLoop("talking", DECODE, "steps", 64, carry={"token": "token"}, leave="decode")
SOUNDING = StreamLoop("sounding", Sequential(CODEC, POLISH))
BRANCHES = Parallel(
    VELOCITY.bind(outputs={"velocity": "with_text"}, alias="cond"),
    VELOCITY.bind(outputs={"velocity": "without"}, alias="uncond"),
)
DENOISING = DynamicLoop("denoising", Sequential(BRANCHES, COMBINE), 8, carry={"latent": "latent"}, leave="combine")

GRAPH = WalkGraph(
    nodes=(LOOK, PREFILL, DECODE, CODEC, POLISH, VELOCITY, COMBINE, SHOW),
    walks=(
        Walk("see", LOOK, persist=("context",)),
        Walk("answer", Sequential(PREFILL, TALKING), emit=("decode.token",)),
        Walk(
            "speak",
            Sequential(LOOK, PREFILL, TALKING, SOUNDING),
            emit=("audio",),
            edges=(StreamingGraphEdge("decode.code", "codec.codes", FixedChunkPolicy(4)),),
        ),
        Walk("paint", Sequential(LOOK, DENOISING, SHOW), emit=("image",)),
    ),
)


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """`cache_lifetime` is an option so that tests can see what it changes."""
    frames, token = TensorSpec("frames", ("N",), ("float32",), "x"), TensorSpec("token", (1,), ("int64",), "x")
    audio, steps = (
        TensorSpec("audio", ("S",), ("float32",), "x"),
        ParamSpec("steps", "int", 4, "x", minimum=1, maximum=64),
    )
    return ServedModel(
        name=name,
        family="crossing",
        doc="declared, never run",
        graph=GRAPH,
        tasks=(
            TaskSpec("answer", "x", (frames,), (token,), ("see", "answer"), (steps,)),
            TaskSpec("say_more", "x", (frames,), (token, audio), ("answer", "speak"), (steps,)),
        ),
        nodes_factory="crossing_model:build_nodes",
        caches={"text": KVSpec(1, 1, 16, 4, 64, str(options.get("cache_lifetime", "session")))},
        checkpoint=checkpoint,
        options=options,
    )
