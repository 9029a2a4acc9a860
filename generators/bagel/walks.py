"""The graph of a model that reads and draws images, and its walks. No torch.

    text_to_image    prefill_text, image_gen, vae_decode
    think_and_draw   prefill_text_to_think, decode, prefill_thought, image_gen, vae_decode
    edit_image       prefill_vae, prefill_vit, prefill_text_after_images, image_gen, vae_decode
    chat             prefill_text, decode
    describe_image   prefill_vit, prefill_text_after_images, decode

All of them share the cache "context", which lives as long as a request. Its sequences are MAIN, everything so far;
WITHOUT_TEXT, a fork of it from before the last text; WITHOUT_IMAGE, all texts without images and without what was
planned; and WRITING, a fork of MAIN that `decode` writes to. What flows, per request:

    ids [N] int64               all texts, each between the tokens that begin and end one
    num_earlier [] int64        how many of them come before the last text
    positions [3] int64         where the next token of MAIN, WITHOUT_TEXT and WITHOUT_IMAGE stands, see contexts
    size [2] int64              rows and columns of the image to be made, in tokens; zeros where none is
    image_latents [r, c, D]     an image as the autoencoder encodes it, D numbers a token
    image_tokens [P, W]         an image as the vision tower sees it
    token, history, state, reason   see generators.llama.walks
    written [B] uint8           the whole text that was written, UTF-8
    latent, denoised [r, c, D] float32   the image to be, before a denoise step and after it
    velocity [r, c, D] float32  where it goes to, seen from one context; empty in a step that has no use for it

`positions` goes from every node that changes a context to the next one, so that sequences go along with it between
ranks. `report` passes `denoised` on: else the next steps would run before what there is to tell of this one.
`flow_without_text` and `flow_without_image` are uses of `flow`: on one rank they share its steps.
"""

from __future__ import annotations

from generators.llama.walks import CARRIED
from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Parallel, Sequential, Walk, WalkGraph

CACHE = "context"
MAIN, WITHOUT_TEXT, WITHOUT_IMAGE, WRITING = "main", "cfg_text", "cfg_img", "writing"
FLOW_MAIN, FLOW_WITHOUT_TEXT, FLOW_WITHOUT_IMAGE = "flow", "flow_without_text", "flow_without_image"
TO_THINK = "tokenize_to_think"


def over_context(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], doc: str) -> GraphNode:
    return GraphNode(name, inputs, outputs, engine="kv_cache", cache=CACHE, doc=doc)


TOKENIZE = GraphNode("tokenize", ("conversation",), ("ids", "num_earlier"), doc="texts to tokens")
BEGIN = GraphNode("begin", ("ids",), ("positions", "size"), doc="an empty context; the size of the image")
READ_TEXT = over_context(
    "read_text", ("ids", "num_earlier", "positions"), ("positions", "num_input_tokens"), "texts into the contexts"
)
ENCODE_LATENTS = GraphNode("encode_latents", ("image",), ("image_latents", "size"), doc="the autoencoder's latents")
READ_LATENTS = over_context("read_latents", ("image_latents",), ("positions",), "latents into the context")
ENCODE_VISION = GraphNode("encode_vision", ("image",), ("image_tokens",), doc="the vision tower")
READ_VISION = over_context(
    "read_vision", ("image_tokens", "positions"), ("positions",), "what is seen into the context"
)
BEGIN_WRITING = GraphNode("begin_writing", ("ids",), CARRIED, doc="the token that begins a text")
DECODE = over_context("decode", (*CARRIED, "positions"), (*CARRIED, "reason", "text"), "the next token")
FINISH = GraphNode("finish", ("reason", "texts"), ("reason", "written"), doc="how it ended; the whole text")
THOUGHT = GraphNode("thought", ("written",), ("thought_ids",), doc="what was planned, as one more text")
READ_THOUGHT = over_context("read_thought", ("thought_ids", "positions"), ("positions",), "the plan into the context")
NOISE = GraphNode("noise", ("size",), ("latent",), doc="what the image is made of")
FLOW = over_context("flow", ("latent", "positions"), ("velocity",), "the velocity seen from a context")
GUIDE = GraphNode(
    "guide", ("latent", "velocity", "velocity_without_text", "velocity_without_image"), ("denoised",),
    doc="one step along the guided velocity",
)  # fmt: skip
REPORT = GraphNode("report", ("denoised",), ("step", "preview", "latents", "denoised"), doc="how far it is")
DECODE_IMAGE = GraphNode("decode_image", ("denoised",), ("image",), doc="latents to pixels")

BRANCHES = Parallel(
    FLOW,
    FLOW.bind(outputs={"velocity": "velocity_without_text"}, alias=FLOW_WITHOUT_TEXT),
    FLOW.bind(outputs={"velocity": "velocity_without_image"}, alias=FLOW_WITHOUT_IMAGE),
)

READING = (TOKENIZE, BEGIN, READ_TEXT)
SEEING = (ENCODE_VISION, READ_VISION)
WRITING_NODES = (BEGIN_WRITING, DECODE, FINISH)
ENCODING = (ENCODE_LATENTS, READ_LATENTS)
THINKING = (THOUGHT, READ_THOUGHT)
DRAWING = (NOISE, FLOW, GUIDE, REPORT, DECODE_IMAGE)


def build_graph(max_tokens: int, max_denoise_steps: int, thinks: bool) -> WalkGraph:
    """`max_tokens`: of a text that is written. `thinks`: it can plan in words before it draws."""
    left = ("ids", "read_text.positions")
    walks = (
        Walk("prefill_vae", Sequential(*ENCODING), persist=("positions", "size")),
        Walk("prefill_vit", Sequential(*SEEING), persist=("positions",)),
        Walk("prefill_text", Sequential(*READING), emit=("num_input_tokens",), persist=(*left, "size")),
        Walk(
            "prefill_text_after_images", Sequential(TOKENIZE, READ_TEXT), emit=("num_input_tokens",), persist=left
        ),
        _decode(max_tokens),
        *(_thinking() if thinks else ()),
        _image_gen(max_denoise_steps),
        Walk("vae_decode", DECODE_IMAGE, emit=("image",)),
    )  # fmt: skip
    nodes = (*READING, *ENCODING, *SEEING, *WRITING_NODES, *(THINKING if thinks else ()), *DRAWING)
    return WalkGraph(nodes, walks)


def _decode(max_tokens: int) -> Walk:
    writing = DynamicLoop(
        "writing", DECODE, times="max_tokens", limit=max_tokens, carry={name: name for name in CARRIED},
        collect={"text": "texts"}, leave="decode",
    )  # fmt: skip
    return Walk(
        "decode",
        Sequential(BEGIN_WRITING, writing, FINISH),
        emit=("text", "decode.token", "finish.reason"),
        persist=("written",),
    )


def _thinking() -> tuple[Walk, Walk]:
    to_think = Sequential(TOKENIZE.bind(alias=TO_THINK), BEGIN, READ_TEXT)
    return (
        Walk(
            "prefill_text_to_think", to_think, emit=("num_input_tokens",),
            persist=("ids", "read_text.positions", "size"),
        ),
        Walk("prefill_thought", Sequential(THOUGHT, READ_THOUGHT), persist=("positions",)),
    )  # fmt: skip


def _image_gen(max_denoise_steps: int) -> Walk:
    denoising = Loop(
        "denoising", Sequential(BRANCHES, GUIDE, REPORT), times="num_denoise_steps", limit=max_denoise_steps,
        carry={"latent": "denoised"},
    )  # fmt: skip
    return Walk(
        "image_gen", Sequential(NOISE, denoising), emit=("step", "preview", "latents"), persist=("report.denoised",)
    )
