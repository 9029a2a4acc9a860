"""What a deployment may say about the voice. No torch, and without the package that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mstar_rt.errors import ConfigError, nearest

VOICES = ("heart", "fenrir", "emma", "fable", "kore")
"""Those of the package hibari-tts. It brings the first; the files of the others are fetched once, see README.md."""

SAMPLE_RATE_HZ = 24_000
MIN_SPEED, MAX_SPEED = 0.5, 2.0
INSTALL = "pip install 'mstar-rt[speech]'"

MIN_PHONEMES = 40
"""Less than a long word with what is around it."""


@dataclass(frozen=True)
class HibariConfig:
    """`voices`: the first is the default. A piece of more than `max_phonemes` is spoken in several, cut where a clause
    ends, or else between words: about 17 phonemes are a second of sound. Longer texts than `max_characters` are
    refused."""

    voices: tuple[str, ...] = VOICES[:1]
    max_phonemes: int = 400
    max_characters: int = 4096


def read_config(name: str, checkpoint: str, options: Mapping[str, Any]) -> HibariConfig:
    """Raises:  ConfigError: there is a checkpoint, an option is unknown or wrong."""
    where = f"model {name!r}"
    if checkpoint:
        raise ConfigError(f"{where} has the checkpoint {checkpoint}, but its weights come with a package: leave it out")
    known = ("voices", "max_phonemes", "max_characters")
    for option in options:
        if option not in known:
            raise ConfigError(f"{where} has an option {option!r}, {nearest(option, known)}")
    numbers = {
        option: _number(where, option, options[option], least)
        for option, least in (("max_phonemes", MIN_PHONEMES), ("max_characters", 1))
        if option in options
    }
    voices = _voices(where, options["voices"]) if "voices" in options else HibariConfig.voices
    return HibariConfig(voices, **numbers)


def _voices(where: str, voices: Any) -> tuple[str, ...]:
    if not isinstance(voices, list) or not voices:
        raise ConfigError(f"{where}: option 'voices' is {voices!r}, expected a list of {', '.join(VOICES)}")
    for voice in voices:
        if voice not in VOICES:
            raise ConfigError(f"{where}: option 'voices' has {voice!r}, {nearest(str(voice), VOICES)}")
        if voices.count(voice) > 1:
            raise ConfigError(f"{where}: option 'voices' has {voice!r} twice")
    return tuple(voices)


def _number(where: str, option: str, value: Any, least: int) -> int:
    if type(value) is not int or not least <= value <= 1_000_000:
        raise ConfigError(f"{where}: option {option!r} is {value!r}, expected a whole number from {least} to 1000000")
    return value
