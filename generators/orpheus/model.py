"""What a served Orpheus declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generators.llama.model import cache_for
from generators.llama.options import check_known, max_sequence_tokens, token_params
from generators.llama.room import check_room, most_tokens
from generators.llama.tasks import BYTES_PER_TOKEN
from generators.llama.tokenizer import LlamaTokenizer
from generators.llama.walks import CACHE
from generators.orpheus.config import OrpheusConfig, Vocabulary, read_config, spoken
from generators.orpheus.walks import Strides, build_graph
from mstar_rt.errors import ConfigError
from mstar_rt.model import GenerationSpec, ParamSpec, ServedModel, SpeechSpec, TaskSpec, TensorSpec
from mstar_rt.model.conversation import WARM_UP

OPTIONS = ("codec", "max_sequence_tokens", "first_chunk_frames", "max_chunk_frames")
USUAL_MAX_SEQUENCE_TOKENS = 4096
USUAL_MAX_TOKENS = 2000
SAMPLING = {"temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.3}
"""What its authors draw with. Without the penalty, from about 1.1, it does not come to an end."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The voice `name` of a deployment.

    Args:
        checkpoint: a folder as published for LlamaForCausalLM: config.json, model*.safetensors and tokenizer.json, with
            the codec in the folder `snac` (config.json, pytorch_model.bin).
        options: `codec`: the codec's folder, if it is another one. `max_sequence_tokens`: text and sound together; a
            worker needs cache for at least one of that length. `first_chunk_frames`, `max_chunk_frames`: see Strides.
    Raises: ConfigError: an option is unknown or wrong, a file is missing or of another kind of model; sequences
                too short for any request.
    """
    check_known(name, options, OPTIONS)
    config = config_of(name, checkpoint, options)
    longest = max_sequence_tokens(name, options, config.llama.max_positions, USUAL_MAX_SEQUENCE_TOKENS)
    words = config.vocabulary
    model = ServedModel(
        name=name,
        family="orpheus",
        doc=f"Orpheus ({config.llama.name}): text to sound",
        graph=build_graph(longest - 1, config.snac, _strides(name, options)),
        tasks=(speech_task(config, longest),),
        nodes_factory="generators.orpheus.nodes:build_nodes",
        caches={CACHE: cache_for(config.llama, longest)},
        checkpoint=checkpoint,
        options=dict(options),
        facts={"max_sequence_tokens": longest, "frame_samples": config.snac.frame_samples},
        generation=GenerationSpec(
            speech=SpeechSpec(
                sample_rate_hz=config.snac.sampling_rate, voices=words.voices, default_voice=words.default_voice
            )
        ),
    )
    _check_room(model, config)
    return model


def _check_room(model: ServedModel, config: OrpheusConfig) -> None:
    words = config.vocabulary
    said = spoken(WARM_UP, words.default_voice)
    num_around = len(words.prompt_start) + len(words.prompt_end)

    def exactly() -> dict[str, int]:
        tokenizer = LlamaTokenizer(Path(model.checkpoint), config.llama.vocab_size)
        return {"speech": num_around + len(tokenizer.encode(said, has_begin=True))}

    check_room(model, {"speech": num_around + most_tokens(said)}, exactly)


def config_of(name: str, checkpoint: str, options: Mapping[str, Any]) -> OrpheusConfig:
    if not checkpoint:
        raise ConfigError(f"model {name!r} has no checkpoint: name the folder of its language model")
    codec = options.get("codec", "")
    if not isinstance(codec, str):
        raise ConfigError(f"model {name!r}: option 'codec' is {codec!r}, expected a folder")
    return read_config(Path(checkpoint), codec)


def speech_task(config: OrpheusConfig, longest: int) -> TaskSpec:
    rate, limit = config.snac.sampling_rate, longest - 1
    defaults = {"max_tokens": min(USUAL_MAX_TOKENS, max(1, longest // 2)), **SAMPLING}
    return TaskSpec(
        "speech", "a text, spoken",
        inputs=(
            TensorSpec("text", ("N",), ("uint8",), "the text, UTF-8", max_sizes=(("N", BYTES_PER_TOKEN * longest),)),
        ),
        outputs=(
            TensorSpec(
                "audio", ("S",), ("float32",), f"what can be heard by now, -1 to 1, {rate} samples a second",
                optional=True, max_abs=1.0,
            ),
            TensorSpec("reason", (), ("int64",), "1: all is said, 3: max_tokens, 4: deadline"),
            TensorSpec("num_input_tokens", (), ("int64",), "tokens of the text, with those around it"),
            TensorSpec("num_output_tokens", (), ("int64",), "tokens that were drawn"),
        ),
        walks=("speech",),
        params=(*token_params(limit, defaults), *_voice_param(config.vocabulary)),
        criticality="generation",
        anytime=True,
    )  # fmt: skip


def _voice_param(words: Vocabulary) -> tuple[ParamSpec, ...]:
    return (ParamSpec("voice", "str", words.default_voice, "who speaks", choices=words.voices),) if words.voices else ()


def _strides(name: str, options: Mapping[str, Any]) -> Strides:
    usual = Strides()
    first = _frames(name, options, "first_chunk_frames", usual.first, 1)
    return Strides(first, _frames(name, options, "max_chunk_frames", max(usual.most, first), first))


def _frames(name: str, options: Mapping[str, Any], option: str, usual: int, least: int) -> int:
    value = options.get(option, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"model {name!r}: option {option!r} is {value!r}, expected a whole number of at least {least}"
        )
    return value
