"""Models of Orpheus' family with random weights, written as the published ones are: a Llama, its tokenizer, a codec.

A Llama with nothing but random weights would not speak: what it samples are not audio tokens, or they stand in the
wrong place of a frame. So the first channels of the residual stream say in which place of a frame the last token
stands; no layer writes there, and the head prefers the 4096 tokens of the next place. Which of them it is comes from
the random part. It never ends by itself. The codec has its noise layers, with weights of zero: so it does all of the
work, and two decoders can be compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.speech.llamas import LlamaSize, Weights, llama_config, random_weights, write_llama, write_tokenizer

NUM_PLACES, NUM_CODES = 7, 4096
"""Of a frame, and of a codebook."""

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 2048


@dataclass(frozen=True)
class Ids:
    """Of tokens. `begin`: of a text; a prompt is `before`, the text and `after`, whose last one the audio follows until
    `stop`; the audio tokens are the last of the vocabulary."""

    begin: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    stop: int
    pad: int
    first_audio: int

    @property
    def vocabulary(self) -> int:
        return self.first_audio + NUM_PLACES * NUM_CODES

    def audio(self, place: int) -> slice:
        """Those that stand in this place of a frame."""
        return slice(self.first_audio + place * NUM_CODES, self.first_audio + (place + 1) * NUM_CODES)


PUBLISHED = Ids(128_000, (128_259,), (128_009, 128_260, 128_261, 128_257), 128_258, 128_263, 128_266)
COMPACT = Ids(256, (257,), (258, 259, 260, 261), 262, 263, 264)
"""A small Llama with the published 157,000 words would be all embedding and head; 28,672 of these are audio."""


@dataclass(frozen=True)
class Size:
    """`codec_width`, `codec_input`: channels of the codec's decoder and of what it reads; published: 1024 and 768."""

    name: str
    llama: LlamaSize
    codec_width: int
    codec_input: int
    ids: Ids = COMPACT


TINY = Size("tiny", LlamaSize(64, 2, 4, 2, 128), 64, 64)
MIDDLE = Size("middle", LlamaSize(384, 8, 6, 2, 1024), 256, 256)
ALL_WORDS = Size("all-words", LlamaSize(64, 2, 4, 2, 128), 64, 64, PUBLISHED)
SIZES = {size.name: size for size in (TINY, MIDDLE, ALL_WORDS)}

PLACE_CHANNEL, PLACE_SCORE = 8.0, 60.0
"""What a token has in the channel of its place, and about how much higher the next place's tokens score."""

LOUDNESS = 20.0
SEED = 0


def write_checkpoint(size: Size, folder: Path) -> None:
    """All that is published of a model into a new folder, the codec in its folder `snac`."""
    ids = size.ids
    config = llama_config(size.llama, ids.vocabulary, ids.begin, ids.stop, ids.pad)
    config["orpheus"] = {
        "audio_base": ids.first_audio, "stop_id": ids.stop, "prompt_start": list(ids.before),
        "prompt_end": list(ids.after),
    }  # fmt: skip
    write_llama(folder, config, speaking_weights(size))
    write_tokenizer(folder, {"<|begin_of_text|>": ids.begin})
    codec = folder / "snac"
    codec.mkdir()
    (codec / "config.json").write_text(json.dumps(codec_config(size), indent=1))
    torch.save(codec_weights(size), codec / "pytorch_model.bin")


def speaking_weights(size: Size) -> Weights:
    ids = size.ids
    weights = random_weights(size.llama, ids.vocabulary, torch.Generator().manual_seed(SEED))
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[:NUM_PLACES] = 0
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for rows in (embedding, head):
        rows[:, :NUM_PLACES] = 0
    for place in range(NUM_PLACES):
        embedding[ids.audio(place), place] = PLACE_CHANNEL
        head[ids.audio(place), (place - 1) % NUM_PLACES] = PLACE_SCORE / PLACE_CHANNEL
    embedding[ids.after[-1], NUM_PLACES - 1] = PLACE_CHANNEL  # so that the first place follows it
    return weights


def codec_config(size: Size) -> dict[str, Any]:
    """Of the `snac` package; what is not of `size` is as published."""
    return {
        "sampling_rate": SAMPLE_RATE_HZ, "encoder_dim": size.codec_input // 16, "encoder_rates": [2, 4, 8, 8],
        "decoder_dim": size.codec_width, "decoder_rates": [8, 8, 4, 2], "attn_window_size": None,
        "codebook_size": NUM_CODES, "codebook_dim": 8, "vq_strides": [4, 2, 1], "noise": True, "depthwise": True,
    }  # fmt: skip


def codec_weights(size: Size) -> Weights:
    """As the package makes them at random, but as loud as speech; without noise, and without the biases, which would be
    all that is heard."""
    from snac import SNAC
    from snac.layers import NoiseBlock

    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        codec = SNAC(**codec_config(size))
    *_, last, _ = codec.decoder.model
    with torch.no_grad():
        for name, weight in (*codec.decoder.named_parameters(), *codec.quantizer.named_parameters()):
            if name.endswith("bias"):
                weight.zero_()
        last.parametrizations.weight.original0.mul_(LOUDNESS)
        for module in codec.decoder.modules():
            if isinstance(module, NoiseBlock):
                module.linear.parametrizations.weight.original0.zero_()
    return codec.state_dict()
