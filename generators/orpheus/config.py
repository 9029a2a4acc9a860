"""What makes a Llama an Orpheus: its ids of audio, its prompts and its voices. No torch.

`config.json` of the language model may have an object `orpheus` with these values; what it leaves out is as published.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from generators.llama.config import LlamaConfig, read_json
from generators.llama.config import read_config as read_llama_config
from generators.orpheus.frames import AudioIds
from generators.orpheus.snac_config import SnacConfig, read_snac_config
from mstar_rt.errors import ConfigError, nearest

BLOCK = "orpheus"
CODEC_FOLDER = "snac"


@dataclass(frozen=True)
class Vocabulary:
    """`prompt_start`, then "voice: text" as tokens, or the text alone where there are no voices, then `prompt_end`;
    sound follows, until `stop_id`. The default voice is the first one, if there are others than usual."""

    audio_base: int = 128_266
    stop_id: int = 128_258
    prompt_start: tuple[int, ...] = (128_259,)
    prompt_end: tuple[int, ...] = (128_009, 128_260, 128_261, 128_257)
    voices: tuple[str, ...] = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
    default_voice: str = "tara"


@dataclass(frozen=True)
class OrpheusConfig:
    llama: LlamaConfig
    snac: SnacConfig
    vocabulary: Vocabulary
    codec_folder: Path

    @property
    def audio_ids(self) -> AudioIds:
        return AudioIds(self.vocabulary.audio_base, self.snac.codebook_size, self.snac.num_slots)


def spoken(text: str, voice: str) -> str:
    """What the prompt has of a text; `voice` "": the model has no voices."""
    return f"{voice}: {text}" if voice else text


def read_config(folder: Path, codec: str = "") -> OrpheusConfig:
    """Args:   folder: of the language model. codec: the codec's folder, where it is not `snac` in that.

    Raises: ConfigError: a file is missing, not understood, or the two do not fit together.
    """
    codec_folder = Path(codec) if codec else folder / CODEC_FOLDER
    path = folder / "config.json"
    vocabulary = _vocabulary(read_json(path).get(BLOCK, {}), path)
    config = OrpheusConfig(
        read_llama_config(folder), read_snac_config(codec_folder / "config.json"), vocabulary, codec_folder
    )
    _check_ids(config, path)
    return config


def _vocabulary(values: Any, path: Path) -> Vocabulary:
    where = f"{path}: {BLOCK!r}"
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is {values!r}, expected an object of names and values")
    known = {field.name: getattr(Vocabulary, field.name) for field in fields(Vocabulary)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where} has an unknown key {key!r}, {nearest(key, known)}")
        _check_kind(value, known[key], f"{where} has {key}")
    if "voices" in values:
        values = {"default_voice": next(iter(values["voices"]), ""), **values}
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    vocabulary = Vocabulary(**given)
    if vocabulary.default_voice not in (vocabulary.voices or ("",)):
        raise ConfigError(
            f"{where} has default_voice {vocabulary.default_voice!r}, "
            f"{nearest(vocabulary.default_voice, vocabulary.voices)}"
        )
    return vocabulary


def _check_kind(value: object, usual: object, what: str) -> None:
    """`usual` is a value of the kind that is expected: an id, a name, or several of one."""
    several = isinstance(usual, tuple)
    kind = type(usual[0]) if isinstance(usual, tuple) else type(usual)
    parts = value if several and isinstance(value, list) else [value]
    if isinstance(value, list) != several or not all(type(part) is kind for part in parts):
        one = "an id" if kind is int else "a name"
        raise ConfigError(f"{what} {value!r}, expected {one.replace('a', 'a list of', 1) + 's' if several else one}")


def _check_ids(config: OrpheusConfig, path: Path) -> None:
    ids, words = config.audio_ids, config.vocabulary
    if not 0 < ids.audio_base < ids.end <= config.llama.vocab_size:
        raise ConfigError(
            f"{path}: ids {ids.audio_base} to {ids.end - 1} are audio, {ids.codebook_size} for each of the "
            f"{ids.num_slots} codes of a frame, but the vocabulary has {config.llama.vocab_size}"
        )
    for one in (words.stop_id, *words.prompt_start, *words.prompt_end):
        if not 0 <= one < config.llama.vocab_size or ids.audio_base <= one < ids.end:
            raise ConfigError(
                f"{path}: id {one} of {BLOCK!r} is audio or not in the vocabulary of {config.llama.vocab_size}"
            )
