"""Who else is on the machine: programs that are always busy, and the robot's own, which is not what is measured."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator

from mstar_rt import process_settings
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition

ROBOT_PRIORITY = 50
NEVER_IDLE = "while True: pass"


@contextlib.contextmanager
def busy_programs() -> Iterator[None]:
    """One for every core, of a login session of its own, as another user's or service's is."""
    command = [sys.executable, "-c", NEVER_IDLE]
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextlib.contextmanager
def as_a_robot(in_real_time: bool) -> Iterator[None]:
    """This process collects no garbage meanwhile and, where the kernel permits it, overtakes the others."""
    gc.collect()
    gc.disable()
    is_permitted = False
    try:
        if in_real_time:
            with contextlib.suppress(FailedPrecondition):
                process_settings.apply(ProcessConfig(realtime_priority=ROBOT_PRIORITY))
                is_permitted = True
        yield
    finally:
        if is_permitted:
            _be_ordinary()
        gc.enable()


def _be_ordinary() -> None:
    for thread in os.listdir(process_settings.THREADS):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
