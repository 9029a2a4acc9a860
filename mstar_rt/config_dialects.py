"""Which foreign clients a deployment serves, and how what they send maps to what its policy takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.errors import ConfigError, nearest

KINDS = ("openpi", "lerobot", "gr00t")
PRESETS = ("none", "droid", "libero", "aloha", "sglang", "vllm_omni")
DEFAULT_PORTS = {"openpi": 8000, "gr00t": 5555}
LAYOUTS = ("hwc", "chw")
VALUES = ("uint8", "unit")
RESIZES = ("none", "pad", "stretch")
CHUNKING_OPTIONS = {
    "chunking": str, "schedule": str, "max_guidance_weight": float, "prefix_attention_horizon": int, "delay": int,
    "ensemble_decay": float,
}  # fmt: skip
OPTIONS: dict[str, type] = {
    "anytime": bool, "budget_ms": float, "model_options": dict, "normalization": str, "num_denoise_steps": int,
    "seed": int, **CHUNKING_OPTIONS,
}  # fmt: skip
"""What `control` of our own client takes besides (see docs/robots.md), by the type of its value."""
IDLE_S, VLLM_OMNI_IDLE_S, LEROBOT_IDLE_S = 600.0, 30.0, 30.0
"""After which a silent client loses its session, where the file does not say. LeRobot's is never silent: between two of
its calls nobody notices that it has gone."""
MAX_IDLE_S = 86400.0


@dataclass(frozen=True)
class CameraSource:
    """Where the image of a policy's camera is in a message. `layout` "hwc" or "chw"; `values` "uint8", or "unit" for
    floats in [0, 1]. `resize` "none" refuses another size than the policy's, "pad" keeps the aspect ratio and adds
    black, "stretch" does not.
    """

    key: str
    layout: str = "hwc"
    values: str = "uint8"
    resize: str = "none"


@dataclass(frozen=True)
class StateSource:
    """The next `size` numbers of the policy's state: `value * scale + offset`, one number for all or one for each."""

    key: str
    size: int
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class InstructionSource:
    """`default` is for messages that have none; None: those are refused."""

    key: str
    default: str | None = None


@dataclass(frozen=True)
class ActionTarget:
    """What a client gets: the first `size` numbers of each action (None: all), `value * scale + offset`, under `key`,
    or in pieces of so many numbers under the keys of `split`. With the key "" an answer is the array alone.
    """

    key: str = "actions"
    size: int | None = None
    split: dict[str, int] = field(default_factory=dict)
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class DialectConfig:
    """One kind of foreign client for one policy.

    A client executes `execute` actions of a chunk at `control_hz` and then asks again: admission counts on
    `control_hz / execute` chunks a second. What is None is as the preset has it. `ignore` are keys that clients send
    and that nothing is made of; every other unknown key is refused. A client that sends nothing for `idle_timeout_s`
    loses its session. `api_keys_file` has one key a line ("": none is asked for). `kill` lets GR00T clients stop the
    server.
    """

    kind: str
    model: str
    host: str = "127.0.0.1"
    port: int | None = None
    control_hz: float = 30.0
    execute: int = 8
    preset: str = "none"
    cameras: dict[str, CameraSource] | None = None
    mask: tuple[str, ...] = ()
    state: tuple[StateSource, ...] | None = None
    instruction: InstructionSource | None = None
    actions: ActionTarget | None = None
    ignore: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    api_keys_file: str = ""
    idle_timeout_s: float | None = None
    kill: bool = False

    @property
    def idle_s(self) -> float:
        if self.idle_timeout_s is not None:
            return self.idle_timeout_s
        if self.kind == "lerobot":
            return LEROBOT_IDLE_S
        return VLLM_OMNI_IDLE_S if self.preset == "vllm_omni" else IDLE_S

    @property
    def own_port(self) -> int:
        """0 takes a free one."""
        return DEFAULT_PORTS[self.kind] if self.port is None else self.port


def check_dialects(dialects: Sequence[DialectConfig], models: Sequence[str], where: str, port: int = 0) -> None:
    """`port` is the server's.

    Raises:  ConfigError: what no policy could serve.
    """
    for index, dialect in enumerate(dialects):
        here = f"{where}[{index}]"
        if dialect.kind not in KINDS:
            raise ConfigError(f"{here}.kind is {dialect.kind!r}, expected one of {', '.join(KINDS)}")
        if dialect.model not in models:
            raise ConfigError(f"{here}.model is {dialect.model!r}, {nearest(dialect.model, models)}")
        _check_listening(dialect, here)
        _check_rhythm(dialect, here)
        _check_mapping(dialect, here)
        _check_options(dialect.options, f"{here}.options")
    ports = [(each.host, each.own_port) for each in dialects if each.kind in DEFAULT_PORTS and each.own_port]
    for host, own_port in ports:
        if ports.count((host, own_port)) > 1:
            raise ConfigError(f"{where}: port {own_port} of {host} is given to two dialects: choose another one")
        if own_port == port:
            raise ConfigError(f"{where}: port {port} is that of the server (server.port): choose another one")
    lerobot = [each.model for each in dialects if each.kind == "lerobot"]
    if len(set(lerobot)) < len(lerobot):
        raise ConfigError(f"{where}: kind lerobot is given twice for model {lerobot[0]!r}, expected once a model")


def _check_options(options: dict[str, Any], here: str) -> None:
    for name, value in options.items():
        if name not in OPTIONS:
            raise ConfigError(f"{here}: unknown key {name!r}, {nearest(str(name), OPTIONS)}")
        kinds = (int, float) if OPTIONS[name] is float else OPTIONS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and OPTIONS[name] is not bool):
            raise ConfigError(f"{here}.{name} is {value!r}, expected {OPTIONS[name].__name__}")
        if isinstance(value, int) and value < 0:
            raise ConfigError(f"{here}.{name} is {value}, expected at least 0")
    if "chunking" not in options and (extra := sorted(CHUNKING_OPTIONS & options.keys())):
        raise ConfigError(f"{here}.{extra[0]} says how chunks are joined: give chunking too")


def _check_listening(dialect: DialectConfig, here: str) -> None:
    if dialect.kind == "lerobot":
        if dialect.port is not None or dialect.host != "127.0.0.1":
            raise ConfigError(f"{here}: lerobot clients use the port of the server, leave host and port out")
        if dialect.api_keys_file:
            raise ConfigError(f"{here}.api_keys_file: lerobot clients send no key, leave it out")
    if dialect.port is not None and not 0 <= dialect.port <= 65535:
        raise ConfigError(f"{here}.port is {dialect.port}, expected 0 (any free one) to 65535")
    if dialect.kill and dialect.kind != "gr00t":
        raise ConfigError(f"{here}.kill is for gr00t clients, leave it out")


def _check_rhythm(dialect: DialectConfig, here: str) -> None:
    if not (math.isfinite(dialect.control_hz) and dialect.control_hz > 0):
        raise ConfigError(f"{here}.control_hz is {dialect.control_hz:g}, expected over 0")
    if dialect.execute < 1:
        raise ConfigError(f"{here}.execute is {dialect.execute}, expected at least 1")
    if not 0 < dialect.idle_s <= MAX_IDLE_S:
        raise ConfigError(f"{here}.idle_timeout_s is {dialect.idle_s:g}, expected over 0, up to {MAX_IDLE_S:g}")


def _check_mapping(dialect: DialectConfig, here: str) -> None:
    if dialect.preset not in PRESETS:
        raise ConfigError(f"{here}.preset is {dialect.preset!r}, expected one of {', '.join(PRESETS)}")
    if dialect.preset != "none" and dialect.kind != "openpi":
        raise ConfigError(f"{here}.preset {dialect.preset!r} is of openpi clients, expected none for {dialect.kind}")
    for name, camera in (dialect.cameras or {}).items():
        for key, known in (("layout", LAYOUTS), ("values", VALUES), ("resize", RESIZES)):
            if getattr(camera, key) not in known:
                value = getattr(camera, key)
                raise ConfigError(f"{here}.cameras.{name}.{key} is {value!r}, expected one of {', '.join(known)}")
    for part in dialect.state or ():
        if part.size < 1:
            raise ConfigError(f"{here}.state: {part.key!r} has size {part.size}, expected at least 1")
        _check_lengths(part, part.size, f"{here}.state: {part.key!r}")
    _check_actions(dialect, here)
    used = [camera.key for camera in (dialect.cameras or {}).values()] + [part.key for part in dialect.state or ()]
    for key in used:
        if not key:
            raise ConfigError(f"{here}: a key is empty, expected the name under which clients send it")
        if used.count(key) > 1:
            raise ConfigError(f"{here}: key {key!r} is used twice, expected one use of what clients send")


def _check_actions(dialect: DialectConfig, here: str) -> None:
    actions = dialect.actions
    if actions is None:
        return
    if actions.size is not None and actions.size < 1:
        raise ConfigError(f"{here}.actions.size is {actions.size}, expected at least 1")
    for key, size in actions.split.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{here}.actions.split.{key} is {size!r}, expected how many numbers it has")
    total = sum(actions.split.values()) or actions.size
    if actions.split and actions.size not in (None, total):
        raise ConfigError(f"{here}.actions: size is {actions.size}, but split has {total} numbers; leave size out")
    if total is not None:
        _check_lengths(actions, total, f"{here}.actions")


def _check_lengths(values: StateSource | ActionTarget, size: int, what: str) -> None:
    for name, numbers in _scaling(values):
        if len(numbers) not in (1, size):
            raise ConfigError(f"{what}: {name} has {len(numbers)} numbers, expected 1 or {size}")
        if not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"{what}: {name} has a number that is not finite")


def _scaling(values: StateSource | ActionTarget) -> Iterator[tuple[str, tuple[float, ...]]]:
    yield "scale", values.scale
    yield "offset", values.offset
