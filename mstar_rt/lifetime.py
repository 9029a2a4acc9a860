"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, with_signal: signal.Signals) -> None:
    """The kernel sends `with_signal` to this process when `parent_pid` ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent_pid:
        sys.exit("the process that started this one is gone")
