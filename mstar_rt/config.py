"""Deployment files: YAML to frozen dataclasses, parsed once; an unknown key, a missing one or a bad value fails.

The only room that reads the environment.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mstar_rt.config_admission import AdmissionConfig, check_admission
from mstar_rt.config_dialects import DialectConfig, check_dialects
from mstar_rt.config_process import ProcessConfig, check_process
from mstar_rt.config_server import ServerConfig, check_server
from mstar_rt.errors import ConfigError, nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")
WORKER_LIMITS = {"threads": 256, "max_batch": 4096, "kv_memory_mb": 1 << 20, "shared_memory_mb": 1 << 20}
MAX_TIMEOUT_S = 86400.0
SCHEDULING = ("deadline", "fcfs", "round_robin")

PATH_OPTIONS = ("config", "tokenizer", "norm_stats")
"""Options of any model family that name a file, or files by name."""


@dataclass(frozen=True)
class WorkerConfig:
    """One worker process. `device` is "cpu", "cuda" or "cuda:<n>"; `threads` are torch's intra-op threads.

    `check_outputs` holds every output of every node against what the model declares, and refuses NaN. A worker whose
    step takes longer than `max_step_s`, or from which nothing is heard for `silence_timeout_s`, is killed and started
    again.

    `max_step_ms` is what no step should take longer than: what can run in parts does, so that more critical work waits
    for a part only. A node that cannot, and takes longer, is reported. None: every step runs as a whole.

    `compile` runs nodes that offer it through torch.compile: faster steps, for some ten seconds at each start.

    `scheduling` "deadline" runs the most critical class first and keeps deadlines inside it; "fcfs" (the oldest request
    first) and "round_robin" (the nodes in turn) know neither, and are there to compare with. `lower_class_share` is the
    part of the step time that less critical work keeps where more critical work would take all of it.
    """

    rank: int
    device: str = "cpu"
    threads: int = 1
    dtype: str = "float32"
    max_batch: int = 16
    kv_memory_mb: int = 256
    shared_memory_mb: int = 256
    check_outputs: bool = False
    max_step_s: float = 60.0
    max_step_ms: float | None = None
    silence_timeout_s: float = 10.0
    scheduling: str = "deadline"
    lower_class_share: float = 0.05
    compile: bool = False
    process: ProcessConfig = field(default_factory=ProcessConfig)


@dataclass(frozen=True)
class ModelConfig:
    """One served model. `options` belong to the family, which refuses those it does not know."""

    name: str
    family: str
    checkpoint: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacementRule:
    """`nodes` run on `ranks`, in all walks or in those named; a later rule overrides an earlier one.

    A node's name means all its uses, the name of one use (its alias) that one, "*" every node. Of several ranks every
    request uses one: they are replicas.
    """

    model: str
    nodes: tuple[str, ...] = ("*",)
    ranks: tuple[int, ...] = (0,)
    walks: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class DeploymentConfig:
    """A whole deployment: models, workers, placement and the edge."""

    name: str
    models: tuple[ModelConfig, ...]
    workers: tuple[WorkerConfig, ...] = (WorkerConfig(rank=0),)
    placement: tuple[PlacementRule, ...] = ()
    server: ServerConfig = field(default_factory=ServerConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    dialects: tuple[DialectConfig, ...] = ()
    warmup_timeout_s: float = 300.0
    base_dir: str = "."

    def resolve(self, path: str) -> str:
        """A path in the file is relative to the file; absolute ones stay."""
        return path if not path or os.path.isabs(path) else str((Path(self.base_dir) / path).resolve())

    def resolve_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """A model's options, with those that are paths resolved like the checkpoint's."""
        return {name: self._resolved(value) if name in PATH_OPTIONS else value for name, value in options.items()}

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._resolved(path) for name, path in value.items()}
        return self.resolve(value) if isinstance(value, str) else value


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key that is given twice: one of the two would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    loader = _StrictLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def load_deployment(path: str | Path) -> DeploymentConfig:
    """Read one deployment file."""
    file = Path(path)
    try:
        data = _read_yaml(file.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"no configuration file at {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return parse_deployment(data, where=str(path), base_dir=str(file.resolve().parent))


def parse_deployment(data: Any, where: str = "config", base_dir: str = ".") -> DeploymentConfig:
    """Build the dataclasses from plain data and check what no single field can tell."""
    if isinstance(data, dict) and "base_dir" in data:
        raise ConfigError(f"{where}: unknown key 'base_dir' (paths are relative to the file)")
    parsed: DeploymentConfig = _build(DeploymentConfig, data, where)
    config = dataclasses.replace(parsed, base_dir=base_dir)
    _check(config, where)
    return config


def config_to_plain(config: DeploymentConfig) -> dict[str, Any]:
    """Plain data that `config_from_plain` of another process turns back into the same configuration."""
    return dataclasses.asdict(config)


def config_from_plain(data: dict[str, Any]) -> DeploymentConfig:
    base_dir = str(data.pop("base_dir"))
    return parse_deployment(data, where="deployment", base_dir=base_dir)


def _check(config: DeploymentConfig, where: str) -> None:
    if not config.models:
        raise ConfigError(f"{where}: 'models' is empty, name at least one model")
    if not config.workers:
        raise ConfigError(f"{where}: 'workers' is empty, name at least one worker")
    for name in (config.name, *(model.name for model in config.models)):
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: name {name!r} is not usable, expected letters, digits, '-', '_' and '.'")
    _unique([model.name for model in config.models], f"{where}.models: name")
    _unique([worker.rank for worker in config.workers], f"{where}.workers: rank")
    for index, worker in enumerate(config.workers):
        _check_worker(worker, f"{where}.workers[{index}]")
    _check_timeout(config.warmup_timeout_s, f"{where}.warmup_timeout_s")
    _check_timeout(config.server.drain_timeout_s, f"{where}.server.drain_timeout_s", least=0.0)
    for index, rule in enumerate(config.placement):
        if not rule.nodes:
            raise ConfigError(f"{where}.placement[{index}].nodes is empty, name nodes or '*'")
        if not rule.walks:
            raise ConfigError(f"{where}.placement[{index}].walks is empty, name walks or '*'")
    check_server(config.server, f"{where}.server")
    check_admission(config.admission, f"{where}.admission")
    check_dialects(config.dialects, [model.name for model in config.models], f"{where}.dialects", config.server.port)


def _check_worker(worker: WorkerConfig, where: str) -> None:
    if worker.rank < 0:
        raise ConfigError(f"{where}.rank is {worker.rank}, expected at least 0")
    if not DEVICE.fullmatch(worker.device):
        raise ConfigError(f"{where}.device is {worker.device!r}, expected 'cpu', 'cuda' or 'cuda:<n>'")
    for name, limit in WORKER_LIMITS.items():
        if not 1 <= getattr(worker, name) <= limit:
            raise ConfigError(f"{where}.{name} is {getattr(worker, name)}, expected 1 to {limit}")
    if worker.dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"{where}.dtype is {worker.dtype!r}, expected 'float32' or 'bfloat16'")
    _check_timeout(worker.max_step_s, f"{where}.max_step_s")
    if worker.max_step_ms is not None and not 0.1 <= worker.max_step_ms <= worker.max_step_s * 1e3:
        raise ConfigError(
            f"{where}.max_step_ms is {worker.max_step_ms:g}, expected 0.1 to {worker.max_step_s * 1e3:g}, which is "
            "this worker's max_step_s in milliseconds"
        )
    _check_timeout(worker.silence_timeout_s, f"{where}.silence_timeout_s", least=1.0)
    if worker.scheduling not in SCHEDULING:
        raise ConfigError(f"{where}.scheduling is {worker.scheduling!r}, expected one of {', '.join(SCHEDULING)}")
    if not 0 <= worker.lower_class_share < 1:
        raise ConfigError(f"{where}.lower_class_share is {worker.lower_class_share:g}, expected 0 up to below 1")
    check_process(worker.process, f"{where}.process")


def _check_timeout(value_s: float, label: str, least: float | None = None) -> None:
    if not (0.0 if least is None else least) <= value_s <= MAX_TIMEOUT_S or (least is None and value_s == 0):
        bounds = "over 0" if least is None else f"at least {least:g}"
        raise ConfigError(f"{label} is {value_s:g}, expected {bounds}, up to {MAX_TIMEOUT_S:g}")


def _unique(values: list[Any], label: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{label} {value!r} is given twice")


def _build(kind: type, data: Any, where: str) -> Any:
    """An instance of the frozen dataclass `kind` from a mapping."""
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if not isinstance(data, dict):
        found = "empty" if data is None else repr(data)
        keys = ", ".join(name for name in fields if name != "base_dir")
        raise ConfigError(f"{where} is {found}, expected a mapping with keys {keys}")
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}, {nearest(str(key), set(fields) - {'base_dir'})}")
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise ConfigError(f"{where}: key {name!r} is missing")
    return kind(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type: dataclasses, tuples of them, plain scalars; no silent conversion."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {value!r}, expected a list")
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(typing.get_args(hint)[0], value, where)
    if origin is dict:
        item = typing.get_args(hint)[1]
        if isinstance(value, dict) and dataclasses.is_dataclass(item):
            return {name: _convert(item, v, f"{where}.{name}") for name, v in value.items()}
        hint = dict
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is not Any and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise ConfigError(f"{where} is {value!r}, expected {hint.__name__}")
    return value


def connection_environment() -> dict[str, str]:
    """How a command reaches a server, by the name of `connect`'s argument: what MSTAR_TOKEN and MSTAR_TLS_CA_FILE,
    MSTAR_TLS_CERT_FILE and MSTAR_TLS_KEY_FILE say."""
    names = ("token", "tls_ca_file", "tls_cert_file", "tls_key_file")
    found = {name: os.environ.get(f"MSTAR_{name.upper()}", "") for name in names}
    return {name: value for name, value in found.items() if value}


def user_cache() -> Path:
    """Where what is made once is kept: XDG_CACHE_HOME/mstar-rt, ~/.cache/mstar-rt when unset."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mstar-rt"


def log_level() -> str:
    """MSTAR_LOG, one of the logging module's level names; WARNING when unset."""
    level = os.environ.get("MSTAR_LOG", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"MSTAR_LOG is {level!r}, expected one of DEBUG, INFO, WARNING, ERROR")
    return level


KEEP_FREED_BYTES = str(1 << 30)
KEPT_KERNELS = "128"


def worker_environment(threads: int) -> dict[str, str]:
    """Environment of a worker process: its own thread count, whatever the parent has.

    glibc would return activations of a few megabytes to the kernel after every layer and fault them in again for the
    next one, which was measured to cost up to 40 % of a step; these settings make it keep them.

    torch and oneDNN each keep the last 1024 matrix products that they prepared, one per number of rows, and with a
    fused activation each holds a buffer as large as its output: under requests of all sizes a worker of the small world
    model grew from 400 to 750 MB in ten minutes. With 128 it stays at 375, and answers as many requests.
    """
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MALLOC_TRIM_THRESHOLD_": KEEP_FREED_BYTES,
        "MALLOC_MMAP_THRESHOLD_": KEEP_FREED_BYTES,
        "LRU_CACHE_CAPACITY": KEPT_KERNELS,
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": KEPT_KERNELS,
    }
