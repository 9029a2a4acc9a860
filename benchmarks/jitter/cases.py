"""What is compared: a deployment with one setting changed, on an idle machine or beside busy programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.control import NOOP, POLICY, WEIGHTS
from mstar_rt import process_settings
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition

CLI = "mstar_rt.cli"


@dataclass(frozen=True)
class Case:
    """`server` and `worker` are keys of the deployment file, `module` is what is run as `mstar-rt`. On a machine with
    `busy` programs of others, one per core, or without.
    """

    name: str
    server: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    busy: bool = False
    module: str = CLI

    @property
    def deployment(self) -> dict[str, Any]:
        """A worker of one thread that has the policy that does nothing and the one that ships."""
        worker = {"rank": 0, "kv_memory_mb": 64, **self.worker}
        models = [
            {"name": NOOP, "family": "benchmarks.noop.policy:declare"},
            {"name": POLICY, "family": "pi05", "checkpoint": str(WEIGHTS)},
        ]
        overload = {"utilisation_bound": None}  # beside busy programs more is asked for than can be done
        return {
            "name": "jitter",
            "admission": overload,
            "server": dict(self.server),
            "workers": [worker],
            "models": models,
        }


def refusal(case: Case) -> str:
    """Why the kernel would refuse it to this user on this machine; "" if it would not."""
    try:
        for keys in (case.server, case.worker):
            process_settings.check_permitted(ProcessConfig(**keys.get("process", {})))
    except FailedPrecondition as error:
        return str(error)
    return ""


def _process(**settings: Any) -> dict[str, Any]:
    return {"process": settings}


TWO_THREADS = Case("two threads", {}, {"threads": 2})
REAL_TIME = Case("real time, programs busy", _process(realtime_priority=20), _process(realtime_priority=10), busy=True)
CASES = (
    Case("server on core 0, worker on core 1", _process(cpus=[0]), _process(cpus=[1])),
    Case("malloc as glibc has it", module="benchmarks.jitter.plain_malloc"),
    TWO_THREADS,
    REAL_TIME,
)
QUICK_CASES = (TWO_THREADS, REAL_TIME)
