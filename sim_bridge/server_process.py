"""A runtime in a process of its own, for programs that bring their server with them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mstar_rt.client import connect
from mstar_rt.errors import FailedPrecondition

STOP_TIMEOUT_S = 15.0
GIVEN_TIMEOUT_S = 10.0
_SERVES = re.compile(r"^mstar-rt serves .* on (\S+)$")


@contextlib.contextmanager
def served(config: Path, module: str = "mstar_rt.cli") -> Iterator[str]:
    """Run `mstar-rt serve config` on a free port; yields "host:port" once every model serves. `module` is what is run
    as `mstar-rt`.

    Raises:
        FailedPrecondition: the server ended before it served, with its own sentence.
    """
    command = [sys.executable, "-m", module, "serve", str(config), "--port", "0", "--parent", str(os.getpid())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield _wait_for_address(process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def served_or_given(
    config: Path, address: str | None, model: str, access: Mapping[str, str] | None = None
) -> Iterator[str]:
    """`address` once `model` is served there; None: as `served`, saying so on standard output. `access` is what
    `connect` takes to get in there.

    Raises:  as `served`.  Unavailable, NotFound: the given server does not serve the model.
    """
    if address is not None:
        with connect(address, **(access or {})) as client:
            client.wait_until_serving(GIVEN_TIMEOUT_S, model)
        yield address
        return
    print(f"starting the runtime with {config.name} ...", flush=True)
    with served(config) as address:
        print(f"serving on {address}", flush=True)
        yield address


def _wait_for_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        match = _SERVES.match(line.strip())
        if match:
            return match.group(1)
    process.wait()
    reason = process.stderr.read().strip().splitlines()
    raise FailedPrecondition(f"the server did not start: {reason[-1] if reason else 'it said nothing'}")
