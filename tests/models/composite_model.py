"""A small composite model with every construct of the graph; declared by dotted path, like a deployer's own model.

encode -> prefill -> decode (a DynamicLoop over paged memory) -> codec (a StreamLoop that starts before decode ends), and
encode -> understand -> a Loop of two guidance branches over forked contexts. Walks that persist, caches that live as
long as a walk, a request and a session. Its nodes misbehave when a request asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composite_faults import FAULT_PARAMS

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.graph import (
    DynamicLoop,
    GraphNode,
    Loop,
    Parallel,
    ReceptiveFieldChunkPolicy,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)
from mstar_rt.model import KVSpec, ParamSpec, ServedModel, TaskSpec, TensorSpec

IMAGE, WIDTH, VOCABULARY, FRAME, HOP, LATENT_ROWS = 8, 16, 32, 4, 3, 3
LEFT, RIGHT = 2, 1
"""Frames before and after its own that a sample of sound depends on."""
MAX_STEPS = 64
PAGE_TOKENS = 4
MAX_TOKENS = 128
OPTIONS = ("cache_layers", "max_ready_chunks", "load_delay_s")

ENCODE = GraphNode("encode", ("image",), ("context",))
PREFILL = GraphNode("prefill", ("context",), ("token", "logits"), engine="kv_cache", cache="text")
DECODE = GraphNode("decode", ("token",), ("next_token", "frame"), engine="kv_cache", cache="text")
CODEC = GraphNode("codec", ("frames",), ("audio",))
VOCODE = GraphNode("vocode", ("frames",), ("audio",))
UNDERSTAND = GraphNode("understand", ("context",), ("primed", "latent"), engine="kv_cache", cache="guidance")
VELOCITY = GraphNode("velocity", ("latent", "primed"), ("velocity",), engine="kv_cache", cache="guidance")
COMBINE = GraphNode("combine", ("latent", "v_cond", "v_uncond"), ("denoised",))
LISTEN = GraphNode("listen", ("context",), ("impression",), engine="kv_cache", cache="history")
PAINT = GraphNode("paint", ("canvas",), ("picture", "next_canvas"))
SHRINK = GraphNode("shrink", ("picture",), ("mean",))

BRANCHES = Parallel(
    VELOCITY.bind(outputs={"velocity": "v_cond"}, alias="cond"),
    VELOCITY.bind(outputs={"velocity": "v_uncond"}, alias="uncond"),
)


def talking(**collect: str) -> DynamicLoop:
    return DynamicLoop(
        "talking", DECODE, "steps", MAX_STEPS, carry={"token": "next_token"}, collect=collect, leave="decode"
    )


def graph(max_ready_chunks: int) -> WalkGraph:
    sound = StreamingGraphEdge(
        "decode.frame", "codec.frames", ReceptiveFieldChunkPolicy(LEFT, RIGHT, strides=(1, 2, 4)), max_ready_chunks
    )
    denoising = Loop("denoising", Sequential(BRANCHES, COMBINE), "steps", MAX_STEPS, carry={"latent": "denoised"})
    canvas = {"canvas": "next_canvas"}
    return WalkGraph(
        nodes=(ENCODE, PREFILL, DECODE, CODEC, VOCODE, UNDERSTAND, VELOCITY, COMBINE, LISTEN, PAINT, SHRINK),
        walks=(
            Walk("encode", ENCODE, emit=("context",)),
            Walk("generate", Sequential(ENCODE, PREFILL, talking()), emit=("logits", "next_token")),
            Walk(
                "speak",
                Sequential(ENCODE, PREFILL, talking(), StreamLoop("sounding", CODEC)),
                emit=("next_token", "audio"),
                edges=(sound,),
            ),
            Walk("speak_offline", Sequential(ENCODE, PREFILL, talking(frame="frames"), VOCODE), emit=("audio",)),
            Walk("denoise", Sequential(ENCODE, UNDERSTAND, denoising), emit=("denoised",)),
            Walk("fill", Sequential(ENCODE, PREFILL), persist=("token",)),
            Walk("tell", talking(), emit=("next_token",)),
            Walk("look", ENCODE, persist=("context",)),
            Walk("answer", Sequential(PREFILL, talking()), emit=("next_token",)),
            Walk("listen", Sequential(ENCODE, LISTEN), emit=("impression",)),
            Walk("paint", Loop("painting", PAINT, "steps", MAX_STEPS, carry=canvas), emit=("picture",)),
            Walk(
                "shrink", Loop("painting", Sequential(PAINT, SHRINK), "steps", MAX_STEPS, carry=canvas), emit=("mean",)
            ),
        ),
    )


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """`cache_layers` makes a page heavy, so that memory of one megabyte holds few of them."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"composite model: unknown option {key!r}, {nearest(key, OPTIONS)}")
    layers = int(options.get("cache_layers", 1))
    text, guidance, history = (
        KVSpec(layers, 1, WIDTH, PAGE_TOKENS, MAX_TOKENS, lifetime) for lifetime in ("request", "walk", "session")
    )
    return ServedModel(
        name=name,
        family="composite",
        doc="sees, talks, sounds and denoises, all of it meaningless",
        graph=graph(int(options.get("max_ready_chunks", 2))),
        tasks=tasks(),
        nodes_factory="composite_nodes:build_nodes",
        caches={"text": text, "guidance": guidance, "history": history},
        options=options,
        node_outputs=node_outputs(),
    )


def tasks() -> tuple[TaskSpec, ...]:
    steps = ParamSpec("steps", "int", 4, "iterations at most", minimum=1, maximum=MAX_STEPS)
    seed = ParamSpec("seed", "int", 0, "of all randomness", minimum=0)
    talk = (
        steps,
        seed,
        ParamSpec("temperature", "float", 0.0, "0: greedy", minimum=0, maximum=10),
        ParamSpec("end_token", "int", -1, "ends the talk; -1: none", minimum=-1, maximum=VOCABULARY - 1),
        *FAULT_PARAMS,
    )
    denoise = (steps, seed, ParamSpec("guidance", "float", 2.0, "scale", minimum=0, maximum=10), *FAULT_PARAMS)
    paint = (steps, ParamSpec("picture_kb", "int", 1, "size", minimum=1, maximum=1 << 17), *FAULT_PARAMS)
    canvas = (floats("canvas", 1),)
    image = (floats("image", "N", IMAGE, limit=24),)
    context = floats("context", "N", WIDTH)
    token, logits = integers("next_token"), floats("logits", VOCABULARY)
    audio = TensorSpec("audio", ("S",), ("float32",), "samples")
    looked = (("context", "run look first"),)
    return (
        TaskSpec("encode", "image to context", image, (context,), ("encode",), FAULT_PARAMS),
        TaskSpec("generate", "tokens after an image", image, (logits, token), ("generate",), talk),
        TaskSpec("speak", "tokens, and sound while they come", image, (token, audio), ("speak",), talk),
        TaskSpec("speak_offline", "all sound at the end", image, (audio,), ("speak_offline",), talk),
        TaskSpec("denoise", "guided", image, (floats("denoised", LATENT_ROWS, WIDTH),), ("denoise",), denoise),
        TaskSpec("fill_and_tell", "generate in two walks", image, (token,), ("fill", "tell"), talk),
        TaskSpec("look", "keep what is seen", image, (), ("look",), FAULT_PARAMS),
        TaskSpec("answer", "tokens after what was seen", (), (token,), ("answer",), talk, session_inputs=looked),
        TaskSpec("paint", "large pictures", canvas, (floats("picture", "S"),), ("paint",), paint),
        TaskSpec("shrink", "large pictures inside", canvas, (floats("mean", 1),), ("shrink",), paint),
        TaskSpec("listen", "of all heard so far", image, (floats("impression", WIDTH),), ("listen",), FAULT_PARAMS),
    )  # fmt: skip


def node_outputs() -> dict[str, TensorSpec]:
    return {
        "encode.context": floats("context", "N", WIDTH),
        "prefill.token": integers("token"),
        "prefill.logits": floats("logits", VOCABULARY),
        "decode.next_token": integers("next_token"),
        "decode.frame": floats("frame", FRAME),
        "codec.audio": floats("audio", "S"),
        "vocode.audio": floats("audio", "S"),
        "understand.primed": integers("primed"),
        "understand.latent": floats("latent", LATENT_ROWS, WIDTH),
        "velocity.velocity": floats("velocity", LATENT_ROWS, WIDTH),
        "combine.denoised": floats("denoised", LATENT_ROWS, WIDTH),
        "listen.impression": floats("impression", WIDTH),
    }


def floats(name: str, *shape: int | str, limit: int | None = None) -> TensorSpec:
    max_sizes = () if limit is None else ((str(shape[0]), limit),)
    return TensorSpec(name, shape, ("float32",), "numbers", max_sizes=max_sizes)


def integers(name: str) -> TensorSpec:
    return TensorSpec(name, (1,), ("int64",), "a token or a count")
