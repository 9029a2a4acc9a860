"""A worker process that has no server any more ends before it loads anything."""

from __future__ import annotations

import os
import subprocess
import sys


def test_it_is_tied_to_its_parent_before_it_imports_what_takes_seconds() -> None:
    not_its_parent = os.getppid()
    command = ["-m", "mstar_rt.worker", "--rank", "0", "--deployment", "d", "--models", "m"]
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--parent", str(not_its_parent)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    *imports, sentence = ended.stderr.splitlines()
    assert sentence == "the process that started this one is gone"
    imported = {line.rpartition("|")[2].strip() for line in imports}
    assert "mstar_rt.lifetime" in imported
    assert imported.isdisjoint({"torch", "numpy", "zmq"})
