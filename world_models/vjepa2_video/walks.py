"""The graph of V-JEPA 2 without actions, and its walks. No torch.

    encode     a clip -> latents of its patches
    predict    a clip or its latents, which patches are hidden -> their predicted latents

The encoder runs a few blocks per step, so that a long clip does not stand in the way of a control tick.
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Section, Sequential, Walk, WalkGraph

BLOCKS_PER_STEP = 2

EMBED = GraphNode("embed", ("frames",), ("tokens", "patches", "encoded"), doc="patches of a clip, embedded")
SELECT = GraphNode(
    "select",
    ("frames", "latents", "context_patches", "target_patches"),
    ("tokens", "patches", "encoded", "context_rows", "context", "targets"),
    doc="which patches are seen and which predicted, and what there is to encode",
)
ENCODE = GraphNode(
    "encode", ("tokens", "patches", "encoded"), ("tokens",), doc="a few blocks of the encoder; latents pass unchanged"
)
READ = GraphNode("read", ("tokens", "encoded"), ("latents",), doc="the encoder's last norm")
PREDICT = GraphNode(
    "predict", ("latents", "context_rows", "context", "targets"), ("predicted",), doc="latents of the hidden patches"
)


def build_graph(num_blocks: int) -> WalkGraph:
    """`num_blocks` is the encoder's depth."""
    return WalkGraph(
        nodes=(EMBED, SELECT, ENCODE, READ, PREDICT),
        walks=(
            Walk("encode", Sequential(EMBED, *_encoder(num_blocks)), emit=("latents",)),
            Walk("predict", Sequential(SELECT, *_encoder(num_blocks), PREDICT), emit=("predicted",)),
        ),
    )


def num_steps(num_blocks: int) -> int:
    """Steps in which the encoder runs."""
    return -(-num_blocks // BLOCKS_PER_STEP)


def _encoder(num_blocks: int) -> tuple[Section | GraphNode, ...]:
    blocks = DynamicLoop("blocks", ENCODE, num_steps(num_blocks), carry={"tokens": "tokens"}, leave=ENCODE.name)
    return blocks, READ
