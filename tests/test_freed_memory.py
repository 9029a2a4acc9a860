"""What is allocated again is not faulted in again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mstar_rt.freed_memory import MAX_MEGABYTES, keep_freed_memory

FAULTS = """
import resource, sys
from mstar_rt.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory(64)
def work():
    for _ in range(200):
        blocks = [bytearray(500_000) for _ in range(3)]
        for block in blocks:
            block[::4096] = b"x" * len(block[::4096])
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_was_freed_is_not_faulted_in_again() -> None:
    plain, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("plain", "keep")
    )
    assert kept < plain / 10, (kept, plain)


@pytest.mark.parametrize("megabytes", [0, -1, MAX_MEGABYTES + 1])
def test_what_cannot_be_kept_is_refused(megabytes: int) -> None:
    with pytest.raises(ValueError, match=f"megabytes is {megabytes}, expected 1 to"):
        keep_freed_memory(megabytes)
