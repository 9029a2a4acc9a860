"""How tokens are drawn: the options of a request, and what a deployment may set. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from generators.llama.config import generation_defaults
from mstar_rt.errors import ConfigError, nearest
from mstar_rt.model import ParamSpec

USUAL_MAX_TOKENS = 256
DEFAULTS: dict[str, float] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def token_params(limit: int, defaults: Mapping[str, Any]) -> tuple[ParamSpec, ...]:
    """The options of a task that draws tokens, at most `limit` of them, with these defaults."""
    given = {"max_tokens": usual_max_tokens(limit), **DEFAULTS, **defaults}
    return (
        ParamSpec("max_tokens", "int", int(given["max_tokens"]), "tokens at most", "tokens", minimum=1, maximum=limit),
        ParamSpec(
            "temperature", "float", float(given["temperature"]), "0: always the likeliest token", minimum=0, maximum=100
        ),
        ParamSpec("top_k", "int", int(given["top_k"]), "draw from so many likeliest; 0: from all", minimum=0),
        ParamSpec(
            "top_p", "float", float(given["top_p"]), "draw from the likeliest that have this share", minimum=0,
            maximum=1,
        ),
        ParamSpec(
            "repetition_penalty", "float", float(given["repetition_penalty"]),
            "makes tokens that were there less likely, in the prompt or since; 1: none", minimum=0.01, maximum=100,
        ),
        ParamSpec("ignore_end", "bool", False, "go on to max_tokens, for measurements"),
        ParamSpec(
            "seed", "int", None, "equal seeds draw equal tokens, alone or batched; unset: fresh", minimum=0,
            optional=True,
        ),
    )  # fmt: skip


def usual_max_tokens(limit: int) -> int:
    """Half of what a short context holds, so that there is room for a prompt."""
    return max(1, min(USUAL_MAX_TOKENS, limit // 2))


def published_defaults(folder: Path) -> dict[str, Any]:
    """What `generation_config.json` draws with; the likeliest token where it does not sample."""
    given = generation_defaults(folder)
    if not given.get("do_sample", False):
        known = {"repetition_penalty": given.get("repetition_penalty")}
    else:
        known = {"temperature": 1.0} | {name: given.get(name) for name in DEFAULTS}
        known["temperature"] = 1.0 if known["temperature"] is None else known["temperature"]
    numbers = {name: value for name, value in known.items() if value is not None}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{folder / 'generation_config.json'}: {name!r} must be a number, got {value!r}")
    return numbers


def max_sequence_tokens(name: str, options: Mapping[str, Any], max_positions: int, usual: int) -> int:
    """The longest sequence that a deployment serves, prompt and all.

    Raises:  ConfigError: it is none, or longer than the model can tell positions apart.
    """
    given = options.get("max_sequence_tokens", min(usual, max_positions))
    if not isinstance(given, int) or isinstance(given, bool) or not 2 <= given <= max_positions:
        raise ConfigError(
            f"model {name!r}: option 'max_sequence_tokens' is {given!r}, expected a whole number from 2 to "
            f"{max_positions}"
        )
    return given


def packaged_name(name: str, checkpoint: str, options: Mapping[str, Any], packaged: Collection[str]) -> str | None:
    """The option `checkpoint`, which names weights that come with a package in place of a folder.

    Raises:  ConfigError: it is none of `packaged`, or a folder is given as well; or a folder that is not there, and
                 `packaged` has its name.
    """
    given = options.get("checkpoint")
    if given is not None and checkpoint:
        raise ConfigError(f"model {name!r} has both a checkpoint and the option 'checkpoint', give one of them")
    if given is not None and not isinstance(given, str):
        raise ConfigError(
            f"model {name!r}: option 'checkpoint' is {given!r}, expected a name as text: {' or '.join(packaged)}"
        )
    if given is not None and given not in packaged:
        raise ConfigError(f"model {name!r}: option 'checkpoint' is {given!r}, {nearest(given, packaged)}")
    meant = Path(checkpoint).name
    if meant in packaged and not Path(checkpoint).exists():
        raise ConfigError(
            f"model {name!r}: there is no folder {checkpoint}; for the weights {meant!r} that come with a package "
            f"write options: {{checkpoint: {meant}}} in its place"
        )
    return given


def check_known(name: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises:  ConfigError: an option that the family does not have."""
    for option in options:
        if option not in known:
            raise ConfigError(f"model {name!r} has no option {option!r}, {nearest(option, known)}")
