"""Asks the kernel for what a ProcessConfig says, or says in one sentence why it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition

THREADS = "/proc/self/task"
MESSENGER = "ZMQbg"
"""How ZeroMQ names its threads."""
HIGHEST = 99
CALLING_THREAD = 0


def pin(settings: ProcessConfig) -> None:
    """Every thread of this process, and those that they start later, to its cores.

    Raises:  FailedPrecondition: there are no such cores.
    """
    if settings.cpus:
        _for_each_thread(lambda thread: _pin(thread, set(settings.cpus)))


def apply(settings: ProcessConfig, spare_children: bool = False) -> None:
    """To every thread of this process, and those that they start later; `spare_children`: processes and threads that
    the calling thread starts do not run in real time.

    Threads that take messages in and send them are one priority higher: a thread that computes step after step and
    shares a core with them would otherwise keep them from running, and never hear of what is more urgent.

    Raises:  FailedPrecondition: the kernel refuses, and why.
    """
    caller = threading.get_native_id()
    _for_each_thread(lambda thread: _apply_to(thread, settings, spare_children and thread == caller))


def check_permitted(settings: ProcessConfig) -> None:
    """Try it on a thread made for that, which then ends: this process stays as it is.

    Raises:  FailedPrecondition: the kernel refuses, and why.
    """
    refused: list[FailedPrecondition] = []

    def attempt() -> None:
        try:
            _apply_to(CALLING_THREAD, settings, False)
        except FailedPrecondition as error:
            refused.append(error)

    thread = threading.Thread(target=attempt, name="permitted")
    thread.start()
    thread.join()
    if refused:
        raise refused[0]


def inherited(settings: ProcessConfig, from_parent: ProcessConfig) -> ProcessConfig:
    """What a child of this process has to ask for, so that it has `settings` and nothing of what this process asked for
    itself (`from_parent`). Called before this process applies that.
    """
    if settings.cpus or not from_parent.cpus:
        return settings
    return dataclasses.replace(settings, cpus=tuple(sorted(os.sched_getaffinity(CALLING_THREAD))))


def _for_each_thread(action: Callable[[int], None]) -> None:
    for name in os.listdir(THREADS):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            action(int(name))


def _apply_to(thread: int, settings: ProcessConfig, spares_children: bool) -> None:
    if settings.cpus:
        _pin(thread, set(settings.cpus))
    if settings.realtime_priority:
        policy = os.SCHED_FIFO | (os.SCHED_RESET_ON_FORK if spares_children else 0)
        try:
            os.sched_setscheduler(thread, policy, os.sched_param(settings.realtime_priority))
            if _is_messenger(thread):
                with contextlib.suppress(PermissionError):  # the limit rtprio may end here
                    higher = min(settings.realtime_priority + 1, HIGHEST)
                    os.sched_setscheduler(thread, policy, os.sched_param(higher))
        except PermissionError:
            limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
            raise FailedPrecondition(
                f"realtime_priority {settings.realtime_priority} is not permitted to this user: allow it (capability "
                f"CAP_SYS_NICE, or the limit rtprio, now {limit}; in a container also the group's cpu.rt_runtime_us), "
                "or take the option out"
            ) from None


def _is_messenger(thread: int) -> bool:
    if thread == CALLING_THREAD:
        return False
    try:
        return Path(THREADS, str(thread), "comm").read_text().startswith(MESSENGER)
    except FileNotFoundError:  # it has ended meanwhile
        return False


def _pin(thread: int, cpus: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cpus)
    except OSError as error:  # none of them is usable; the kernel drops some without a word
        if error.errno != errno.EINVAL:
            raise
    if (missing := cpus - os.sched_getaffinity(thread)) or os.sched_getaffinity(thread) - cpus:
        raise FailedPrecondition(
            f"cpus: this process cannot run on {_numbers(missing or cpus)}: this machine has {os.cpu_count()} cores, "
            f"and it may use {_numbers(os.sched_getaffinity(thread))}"
        )


def _numbers(cpus: set[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))
