"""The graph of a language model that speaks, and its one walk. No torch.

    speech      text -> sound, chunk by chunk, while the language model goes on

The language model is that of generators.llama.walks, with a prompt of its own. The codec carries from chunk to chunk

    heard [1 + C] int64     how many frames there were, and the codes of the one that is begun
    kept [K] float32        what its convolutions need of what they have read

so a chunk is of new ids alone, and no frame is ever decoded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from generators.llama.walks import decode_node, prefill_node, writing
from generators.orpheus.snac_config import SnacConfig
from mstar_rt.graph import (
    GraphNode,
    ReceptiveFieldChunkPolicy,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)

PROMPT = GraphNode("prompt", ("text",), ("ids", "num_input_tokens", "heard", "kept"), doc="voice and text, as tokens")
CODEC = GraphNode("codec", ("ids", "heard", "kept"), ("audio", "heard", "kept"), doc="the sound of a chunk of ids")
SOUNDING = StreamLoop("sounding", CODEC, carry={"heard": "heard", "kept": "kept"})
COUNTS = ("reason", "num_input_tokens", "num_output_tokens")
FINISH = GraphNode(
    "finish", ("reason", "history", "num_input_tokens", "heard"), COUNTS, doc="what was said in all, once it is heard"
)

MAX_READY_CHUNKS = 4


@dataclass(frozen=True)
class Strides:
    """How many frames make a chunk. The first one is heard once the frames are there that its sound depends on; the
    second is as long, and each after that twice as long as the one before it, up to `most`."""

    first: int = 1
    most: int = 4

    def frames(self, config: SnacConfig) -> tuple[int, ...]:
        """The new frames of each chunk, the last again and again. With chunk 0 the sound of `first` frames begins."""
        strides, stride = [self.first - 1 + config.num_frames_ahead], self.first
        while stride < self.most:
            strides.append(stride)
            stride = min(2 * stride, self.most)
        return (*strides, self.most)


def codec_edge(source: str, config: SnacConfig, strides: Strides) -> StreamingGraphEdge:
    """From what gives one id per iteration, e.g. "decode.token"."""
    ids = tuple(config.num_slots * frames for frames in strides.frames(config))
    return StreamingGraphEdge(source, "codec.ids", ReceptiveFieldChunkPolicy(0, 0, ids), MAX_READY_CHUNKS)


def build_graph(limit: int, config: SnacConfig, strides: Strides) -> WalkGraph:
    """`limit`: tokens that a sound has at most."""
    prefill, decode = prefill_node(), decode_node()
    speech = Walk(
        "speech",
        Sequential(PROMPT, prefill, writing(decode, limit), SOUNDING, FINISH),
        emit=("audio", *(f"finish.{name}" for name in COUNTS)),
        edges=(codec_edge("decode.token", config, strides),),
    )
    return WalkGraph(nodes=(PROMPT, prefill, decode, CODEC, FINISH), walks=(speech,))
