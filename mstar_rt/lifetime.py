"""What a process and the one that started it owe each other."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

START_FAILED = 3
"""Exit status of a worker that cannot start whatever one does; it is not started again."""


def end_with_parent(parent_pid: int, with_signal: signal.Signals) -> None:
    """The kernel sends `with_signal` to this process when `parent_pid` ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent_pid:
        sys.exit("the process that started this one is gone")
