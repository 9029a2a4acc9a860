"""What a deployment says about a policy besides its network: cameras, state, actions, statistics, text. No torch.

It stands in a JSON file beside the weights, and any key of it may stand in the deployment's options instead, never in
both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mstar_rt.errors import ConfigError, nearest
from mstar_rt.model.anytime import USUAL_MIN_DENOISE_STEPS
from mstar_rt.model.policy import CameraSpec, VectorSpec
from policies.pi05.config import Pi05Config, preset
from policies.pi05.settings_parts import read_action, read_cameras, read_files, read_vector, value_of

NORMALIZATIONS = ("quantile", "z_score", "none")
MAX_DENOISE_STEPS = 64
MAX_PROMPT_TOKENS = 65536
USUAL_PROMPT_TOKENS = {"pi05": 200, "pi0": 48}
USUAL_NORMALIZATION = {"pi05": "quantile", "pi0": "z_score"}
LOADING = ("config", "random_seed")
"""Options that are about where things come from."""


@dataclass(frozen=True)
class PolicySettings:
    """`relative_to`: for each dimension of an action the dimension of the state that it is a difference to, or None.
    `norm_stats`: files by name. `max_prefix_delay`: the longest prefix that training saw, in actions.
    `min_denoise_steps`: the fewest, of a session that allows fewer than it asks for."""

    name: str
    network: Pi05Config
    cameras: tuple[CameraSpec, ...]
    state: VectorSpec | None
    action: VectorSpec
    relative_to: tuple[int | None, ...]
    discrete_state_input: bool
    normalization: str
    norm_stats: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str = ""
    max_prompt_tokens: int = 200
    num_denoise_steps: int = 10
    min_denoise_steps: int = USUAL_MIN_DENOISE_STEPS
    max_prefix_delay: int | None = None

    @property
    def is_relative(self) -> bool:
        return any(index is not None for index in self.relative_to)

    @property
    def has_state_token(self) -> bool:
        return self.network.takes_state

    @property
    def max_context_tokens(self) -> int:
        """Images, text and state."""
        images = len(self.cameras) * self.network.vision.num_patches
        return images + self.max_prompt_tokens + self.has_state_token


KEYS = tuple(
    {"relative_to": "action"}.get(item.name, item.name) for item in dataclasses.fields(PolicySettings)
    if item.name != "relative_to"
)  # fmt: skip


def settings_for(model: str, family: str, checkpoint: str, options: Mapping[str, Any]) -> PolicySettings:
    """The settings that a deployment means.

    Args:    family: "pi05" or "pi0", what its family says.
    Raises:  ConfigError: an unknown or missing key, one given twice, or values that contradict each other.
    """
    where = f"model {model!r}"
    known = (*KEYS, *LOADING)
    for key in options:
        if key not in known:
            raise ConfigError(f"{where}: unknown option {key!r}, {nearest(str(key), known)}")
    file = _file(checkpoint, options)
    if file is None and checkpoint and not Path(checkpoint).exists():
        raise ConfigError(f"{where}: no weights file at {checkpoint}; check the path")
    read = _read(file) if file is not None else {}
    given = {key: value for key, value in options.items() if key not in LOADING}
    for key in given:
        if key in read:
            raise ConfigError(f"{where}: {key!r} is an option and stands in {file} too, give it once")
    source = f"{where}, {file}" if file is not None else where
    return _settings(source, family, {"name": model, **_with_paths(read, file), **given})


def _file(checkpoint: str, options: Mapping[str, Any]) -> Path | None:
    if "config" in options:
        return Path(options["config"])
    path = Path(checkpoint)
    beside = path / "policy.json" if path.is_dir() else path.with_suffix(".json")
    return beside if checkpoint and beside.is_file() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the policy's settings at {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{file} holds a {type(read).__name__}, expected a mapping of settings")
    for key in read:
        if key not in KEYS:
            raise ConfigError(f"{file} has an unknown key {key!r}, {nearest(key, KEYS)}")
    return read


def _with_paths(read: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Paths in a file are relative to it."""

    def resolved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: resolved(path) for name, path in value.items()}
        return str((file.parent / value).resolve()) if file is not None and isinstance(value, str) and value else value

    return {key: resolved(value) if key in ("tokenizer", "norm_stats") else value for key, value in read.items()}


def _settings(where: str, family: str, values: dict[str, Any]) -> PolicySettings:
    for key in ("network", "action"):
        if key not in values:
            raise ConfigError(
                f"{where}: {key!r} is missing, give it in the JSON beside the checkpoint or as an option of a "
                "deployment file (`--config FILE` on the command line)"
            )
    network = _network(where, family, values["network"])
    state = read_vector(f"{where}: 'state'", values["state"]) if values.get("state") is not None else None
    action, relative_to = read_action(where, values["action"], state)
    num_steps = value_of(where, values, "num_denoise_steps", int, 10)
    settings = PolicySettings(
        name=value_of(where, values, "name", str, ""),
        network=network,
        cameras=read_cameras(where, values.get("cameras", [])),
        state=state,
        action=action,
        relative_to=relative_to,
        discrete_state_input=value_of(where, values, "discrete_state_input", bool, family == "pi05"),
        normalization=value_of(where, values, "normalization", str, USUAL_NORMALIZATION[family]),
        norm_stats=read_files(where, values.get("norm_stats", {})),
        tokenizer=value_of(where, values, "tokenizer", str, ""),
        max_prompt_tokens=value_of(where, values, "max_prompt_tokens", int, USUAL_PROMPT_TOKENS[family]),
        num_denoise_steps=num_steps,
        min_denoise_steps=value_of(where, values, "min_denoise_steps", int, min(USUAL_MIN_DENOISE_STEPS, num_steps)),
        max_prefix_delay=value_of(where, values, "max_prefix_delay", int, None),
    )
    _check(where, family, settings)
    return settings


def _network(where: str, family: str, value: Any) -> Pi05Config:
    network = preset(value) if isinstance(value, str) else Pi05Config.from_dict(value, f"{where}: 'network'")
    if network.kind != family:
        raise ConfigError(
            f"{where}: the network is of kind {network.kind!r}, but the family is {family!r}; give both alike"
        )
    return network


def _check(where: str, family: str, settings: PolicySettings) -> None:
    network = settings.network
    for what, vector in (("action", settings.action), ("state", settings.state)):
        if vector is not None and vector.size > network.action_dim and (what == "action" or settings.has_state_token):
            raise ConfigError(f"{where}: the {what} has {vector.size} numbers, the network takes {network.action_dim}")
    if settings.normalization not in NORMALIZATIONS:
        raise ConfigError(
            f"{where}: 'normalization' is {settings.normalization!r}, {nearest(settings.normalization, NORMALIZATIONS)}"
        )
    if settings.normalization != "none" and not settings.norm_stats:
        raise ConfigError(f"{where}: normalization {settings.normalization!r} needs 'norm_stats', a file of statistics")
    if settings.normalization == "none" and settings.norm_stats:
        raise ConfigError(f"{where}: normalization 'none' takes no 'norm_stats'")
    if family == "pi0" and settings.discrete_state_input:
        raise ConfigError(f"{where}: 'discrete_state_input' is true, but pi0 takes the state as a token of its own")
    takes_state = settings.discrete_state_input or settings.has_state_token
    if takes_state and settings.state is None:
        raise ConfigError(f"{where}: 'state' is missing, which this policy takes")
    if settings.state is not None and not takes_state and not settings.is_relative:
        raise ConfigError(
            f"{where}: 'state' is declared, but nothing reads it: no text (discrete_state_input), no relative action"
        )
    for key, path in (
        ("tokenizer", settings.tokenizer),
        *(("norm_stats", file) for file in settings.norm_stats.values()),
    ):
        if path and not Path(path).is_file():
            raise ConfigError(f"{where}: there is no file at {path}, which {key!r} names")
    for key, limit in (
        ("max_prompt_tokens", MAX_PROMPT_TOKENS),
        ("num_denoise_steps", MAX_DENOISE_STEPS),
        ("min_denoise_steps", settings.num_denoise_steps),
    ):
        if not 1 <= getattr(settings, key) <= limit:
            raise ConfigError(f"{where}: {key!r} is {getattr(settings, key)}, expected 1 to {limit}")
    most = network.action_horizon - 1
    if settings.max_prefix_delay is not None and not 1 <= settings.max_prefix_delay <= most:
        raise ConfigError(f"{where}: 'max_prefix_delay' is {settings.max_prefix_delay}, expected 1 to {most} actions")
