"""What a process asks of the kernel: it gets it on every thread, or hears in one sentence why not."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from mstar_rt import process_settings
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition
from mstar_rt.process_settings import apply, check_permitted, inherited, pin


class Kernel:
    """Records what threads are given, unless it `refuses`."""

    def __init__(self) -> None:
        self.policies: dict[int, tuple[int, int]] = {}
        self.refuses = False

    def set_scheduler(self, thread: int, policy: int, param: os.sched_param) -> None:
        if self.refuses:
            raise PermissionError(1, "Operation not permitted")
        self.policies[thread] = (policy, param.sched_priority)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(process_settings.os, "sched_setscheduler", kernel.set_scheduler)
    return kernel


@pytest.fixture
def another_thread() -> Iterator[int]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    ended.set()
    thread.join()


def test_every_thread_runs_in_real_time(kernel: Kernel, another_thread: int) -> None:
    apply(ProcessConfig(realtime_priority=7))
    assert {kernel.policies[another_thread], kernel.policies[threading.get_native_id()]} == {(os.SCHED_FIFO, 7)}
    assert set(kernel.policies) == {int(name) for name in os.listdir("/proc/self/task")}


def test_threads_that_carry_messages_go_before_the_one_that_computes(kernel: Kernel) -> None:
    """On one core they would not be run between two steps at an equal priority: FIFO hands nothing over."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind("inproc://messages")
        while not (messengers := _named("ZMQbg")):  # they name themselves once they run
            pass
        apply(ProcessConfig(realtime_priority=7))
    assert {kernel.policies[thread] for thread in messengers} == {(os.SCHED_FIFO, 8)}
    assert kernel.policies[threading.get_native_id()] == (os.SCHED_FIFO, 7)


def _named(prefix: str) -> set[int]:
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (thread / "comm").read_text().startswith(prefix):
                found.add(int(thread.name))
    return found


def test_children_of_the_calling_thread_are_spared(kernel: Kernel, another_thread: int) -> None:
    apply(ProcessConfig(realtime_priority=7), spare_children=True)
    assert kernel.policies[threading.get_native_id()] == (os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 7)
    assert kernel.policies[another_thread] == (os.SCHED_FIFO, 7)


def test_nothing_asked_nothing_done(kernel: Kernel) -> None:
    kernel.refuses = True
    apply(ProcessConfig())
    check_permitted(ProcessConfig())
    assert not kernel.policies


def test_threads_run_on_their_cores() -> None:
    """On a thread of its own: the others of this process stay where they are."""
    core = min(os.sched_getaffinity(0))
    seen: list[set[int]] = []

    def run() -> None:
        process_settings._apply_to(0, ProcessConfig(cpus=(core,)), False)
        seen.append(os.sched_getaffinity(0))

    before = os.sched_getaffinity(0)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [(4095,), (0, 4095)])
def test_cores_that_are_not_there_are_refused(cpus: tuple[int, ...]) -> None:
    """The kernel would leave out one of several without a word."""
    before = os.sched_getaffinity(0)
    with pytest.raises(FailedPrecondition, match=r"cpus: this process cannot run on 4095: this machine has \d+ cores"):
        check_permitted(ProcessConfig(cpus=cpus))
    assert os.sched_getaffinity(0) == before


def test_every_thread_is_pinned(monkeypatch: pytest.MonkeyPatch, another_thread: int) -> None:
    cores = os.sched_getaffinity(0)
    pinned: dict[int, set[int]] = {}
    monkeypatch.setattr(process_settings.os, "sched_setaffinity", pinned.__setitem__)
    pin(ProcessConfig(cpus=tuple(cores)))
    assert pinned[another_thread] == pinned[threading.get_native_id()] == cores
    pinned.clear()
    pin(ProcessConfig())
    assert not pinned


def test_what_the_kernel_does_not_permit_is_one_sentence(kernel: Kernel) -> None:
    kernel.refuses = True
    for attempt in (check_permitted, apply):
        with pytest.raises(FailedPrecondition, match=r"realtime_priority 5 is not permitted to this user: .* rtprio,"):
            attempt(ProcessConfig(realtime_priority=5))


def test_trying_leaves_the_process_as_it_is(kernel: Kernel) -> None:
    check_permitted(ProcessConfig(realtime_priority=5))
    assert kernel.policies == {0: (os.SCHED_FIFO, 5)}, "only the thread that tries"


def test_a_thread_that_ends_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(process_settings.os, "sched_setscheduler", gone)
    monkeypatch.setattr(process_settings.os, "sched_setaffinity", gone)
    apply(ProcessConfig(realtime_priority=5))
    pin(ProcessConfig(cpus=(0,)))


def test_a_child_does_not_inherit_what_its_parent_asked_for() -> None:
    here = tuple(sorted(os.sched_getaffinity(0)))
    parent = ProcessConfig(cpus=(0,))
    assert inherited(ProcessConfig(realtime_priority=5), parent) == ProcessConfig(here, 5)
    own = ProcessConfig(cpus=(1,), realtime_priority=4)
    assert inherited(own, parent) == own
    assert inherited(ProcessConfig(), ProcessConfig()) == ProcessConfig()
