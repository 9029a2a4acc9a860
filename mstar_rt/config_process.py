"""What a deployment file may ask of the kernel for one process; see docs/real-time.md, "Jitter"."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError

MAX_CPU = 4095


@dataclass(frozen=True)
class ProcessConfig:
    """How a process is scheduled; by default as any other one.

    `cpus` are the cores that it may run on (empty: any). With `realtime_priority` 1 to 99 it runs before every ordinary
    process (SCHED_FIFO), highest first.
    """

    cpus: tuple[int, ...] = ()
    realtime_priority: int = 0


def check_process(process: ProcessConfig, where: str) -> None:
    """Raises:  ConfigError: what no machine could do."""
    for cpu in process.cpus:
        if not 0 <= cpu <= MAX_CPU:
            raise ConfigError(f"{where}.cpus has {cpu}, expected numbers of cores, 0 to {MAX_CPU}")
        if process.cpus.count(cpu) > 1:
            raise ConfigError(f"{where}.cpus has {cpu} twice")
    if not 0 <= process.realtime_priority <= 99:
        raise ConfigError(
            f"{where}.realtime_priority is {process.realtime_priority}, expected 1 to 99, or 0 for an ordinary process"
        )
