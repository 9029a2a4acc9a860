"""What the nodes of the voice compute. The network runs in onnxruntime on the CPU, whatever the worker's device and
dtype are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from generators.hibari.config import INSTALL, HibariConfig, read_config
from generators.hibari.processor import Reader, Reading, noise_from, noise_state
from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import NodeCall, NodeResources, NodeResult, Reason, ServedModel
from mstar_rt.model.conversation import WARM_UP, read_text

WARM_UP_TEXT = "This is how long a sentence usually is."
FIRST_WORDS = "The zorblax is ready."
"""One of them is in no lexicon, so that what spells such words is loaded before the first request, too."""

Speech = tuple["Voice", str, Reading]


@dataclass(frozen=True)
class Voice:
    """A network of the package hibari-tts, and what reads texts in its accent."""

    network: Any
    reader: Reader

    def speak(self, phonemes: str, speed: float, noise: np.random.Generator) -> np.ndarray:
        """float32 [S], -1 to 1. Draws from `noise`."""
        audio: np.ndarray = self.network.from_ids(self.network.ids(phonemes), speed, noise)
        return audio.clip(-1.0, 1.0)


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Raises:  ConfigError: the package is not installed, the file of a voice is not there."""
    config = read_config(model.name, model.checkpoint, model.options)
    nodes = {"begin": Begin, "speak": Speak}
    wanted = resources.nodes or {*nodes, "finish"}
    made: dict[str, Any] = {"finish": Finish()} if "finish" in wanted else {}
    if wanted & nodes.keys():
        voices = load_voices(config)
        made |= {name: node(voices, config, resources.device) for name, node in nodes.items() if name in wanted}
    return made


def load_voices(config: HibariConfig) -> dict[str, Voice]:
    """Raises:  ConfigError: the package is not installed, the file of a voice is not there."""
    try:
        from hibari import Hibari
        from hibari.voices import VOICES, cache_dir, voice_path
    except ImportError as error:
        raise ConfigError(f"the voice needs the package hibari-tts ({error}): {INSTALL}") from error
    voices: dict[str, Voice] = {}
    by_accent: dict[bool, Any] = {}
    for name in config.voices:
        try:
            path = voice_path(name, download_missing=False)
        except FileNotFoundError as error:
            raise ConfigError(
                f"voice {name!r} is not in {cache_dir()}: fetch it once, e.g. by `hibari --voice {name} Hello`"
            ) from error
        is_british = bool(VOICES[name]["british"])
        network = Hibari(name, model=path, threads=torch.get_num_threads(), g2p=by_accent.get(is_british))
        network(FIRST_WORDS)
        by_accent[is_british] = network.g2p
        reader = Reader(network.split_sentences, network.g2p, network.vocab, config.max_phonemes)
        voices[name] = Voice(network, reader)
    return voices


class _Reads:
    def __init__(self, voices: Mapping[str, Voice], config: HibariConfig, device: str) -> None:
        self._voices, self._config, self._device = voices, config, device

    def _voice(self, call: NodeCall) -> Voice:
        return self._voices[call.params["voice"]]

    @staticmethod
    def _text(call: NodeCall) -> str:
        text = read_text(call.inputs["text"].cpu().numpy(), "text")
        return WARM_UP_TEXT if text == WARM_UP else text

    def _tensor(self, reading: Reading) -> torch.Tensor:
        return torch.tensor(reading.numbers(), device=self._device)


class Begin(_Reads):
    """text uint8 [N] -> reading int64 [10], before the first piece that can be spoken."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._begin(call) for call in calls]

    def _begin(self, call: NodeCall) -> NodeResult:
        text = self._text(call)
        if not text.strip():
            raise InvalidArgument("the text has no word in it, expected something to say")
        if len(text) > self._config.max_characters:
            raise InvalidArgument(
                f"the text has {len(text)} characters, the limit of this model is {self._config.max_characters}"
            )
        start = Reading(0, 0, 0, 0, noise_state(np.random.default_rng(call.seed)))
        reading, was_skipped = self._voice(call).reader.find(text, start)
        if reading is None:
            raise InvalidArgument(f"nothing in the text can be spoken in English: it begins with {text.strip()[:20]!r}")
        return NodeResult({"reading": self._tensor(reading)}, flags=_flags(was_skipped))


class Speak(_Reads):
    """The piece at `reading` -> audio float32 [S], and the reading before the piece that follows.

    A step has pieces of about one length, so that the short ones wait for no long one. The network takes one at a time.
    """

    def batch_key(self, call: NodeCall) -> Hashable:
        _, phonemes, _ = self._speech(call)
        return len(phonemes).bit_length()

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._speak(call) for call in calls]

    def _speak(self, call: NodeCall) -> NodeResult:
        voice, phonemes, reading = self._speech(call)
        noise = noise_from(reading.noise)
        audio = voice.speak(phonemes, call.params["speed"], noise)
        reading = replace(
            reading,
            piece=reading.piece + 1,
            num_phonemes=reading.num_phonemes + len(phonemes),
            noise=noise_state(noise),
        )
        following, was_skipped = voice.reader.find(self._text(call), reading)
        flags = _flags(was_skipped)
        if following is None:
            following = replace(reading, reason=Reason.END)
        elif self._is_late(call):
            following, flags = replace(reading, reason=Reason.DEADLINE), (*flags, "deadline")
        outputs = {"audio": torch.from_numpy(audio).to(self._device), "next_reading": self._tensor(following)}
        return NodeResult(outputs, leave=following.reason != 0, flags=flags)

    def _speech(self, call: NodeCall) -> Speech:
        voice, reading = self._voice(call), Reading.of(call.inputs["reading"].tolist())
        return voice, voice.reader.piece(self._text(call), reading), reading

    @staticmethod
    def _is_late(call: NodeCall) -> bool:
        """Whether one more piece would not be ready in time."""
        return call.deadline_ns is not None and call.now_ns() + (call.predicted_ns("speak") or 0) >= call.deadline_ns


class Finish:
    """next_reading int64 [10] -> reason and num_input_tokens, int64 []."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        readings = [Reading.of(call.inputs["next_reading"].tolist()) for call in calls]
        return [
            NodeResult({"reason": torch.tensor(each.reason), "num_input_tokens": torch.tensor(each.num_phonemes)})
            for each in readings
        ]


def _flags(was_skipped: bool) -> tuple[str, ...]:
    """A sentence without any sound in English was left out."""
    return ("unspoken",) if was_skipped else ()
