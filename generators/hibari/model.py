"""What the served voice declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generators.hibari.config import MAX_SPEED, MIN_SPEED, SAMPLE_RATE_HZ, HibariConfig, read_config
from generators.hibari.walks import build_graph
from mstar_rt.model import GenerationSpec, ParamSpec, ServedModel, SpeechSpec, TaskSpec, TensorSpec

MAX_BYTES = 4
"""Of a character, in UTF-8."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The model `name` of a deployment.

    Args:   options: `voices`, `max_phonemes`, `max_characters`: see HibariConfig.
    Raises: ConfigError: a checkpoint is given, an option is unknown or wrong.
    """
    config = read_config(name, checkpoint, options)
    return ServedModel(
        name=name,
        family="hibari",
        doc="English speech at 24 kHz, sentence by sentence",
        graph=build_graph(config.max_characters),
        tasks=(speech_task(config),),
        nodes_factory="generators.hibari.nodes:build_nodes",
        options=dict(options),
        facts={"max_characters": config.max_characters},
        generation=GenerationSpec(
            speech=SpeechSpec(sample_rate_hz=SAMPLE_RATE_HZ, voices=config.voices, default_voice=config.voices[0])
        ),
    )


def speech_task(config: HibariConfig) -> TaskSpec:
    most_bytes = MAX_BYTES * config.max_characters
    return TaskSpec(
        "speech", "an English text, spoken",
        inputs=(TensorSpec("text", ("N",), ("uint8",), "the text, UTF-8", max_sizes=(("N", most_bytes),)),),
        outputs=(
            TensorSpec("audio", ("S",), ("float32",), "one sentence, -1 to 1, 24000 samples a second", max_abs=1.0),
            TensorSpec("reason", (), ("int64",), "why it ended: 1 all is said, 4 the deadline"),
            TensorSpec("num_input_tokens", (), ("int64",), "phonemes that were spoken"),
        ),
        walks=("speak",),
        params=(
            ParamSpec("voice", "str", config.voices[0], "who speaks", choices=config.voices),
            ParamSpec("speed", "float", 1.0, "1: as the voice was trained", minimum=MIN_SPEED, maximum=MAX_SPEED),
            ParamSpec("seed", "int", None, "equal seeds give equal sound", minimum=0, optional=True),
        ),
        criticality="generation",
        anytime=True,
    )  # fmt: skip
