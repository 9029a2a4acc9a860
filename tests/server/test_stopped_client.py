"""A client whose process is stopped: its kernel still answers, it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from toy_runtime import toy_runtime

from mstar_rt.message import CloseSession
from mstar_rt.server.edge import EdgeConfig

CLIENT = """
import sys
from mstar_rt.client import connect
client = connect(sys.argv[1])
session = client.session("toy")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(60)
def test_a_client_that_is_stopped_loses_its_session() -> None:
    with toy_runtime(EdgeConfig(port=0, keepalive_time_ms=500, keepalive_timeout_ms=500)) as runtime:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, runtime.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            os.kill(process.pid, signal.SIGSTOP)
            runtime.wait_for(CloseSession)
        finally:
            process.kill()
            process.communicate()
