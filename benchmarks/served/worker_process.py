"""Benchmarks measure in a process that is set up as a worker is: its environment is what a worker gets from us.

The allocator's and the thread pools' settings are read when a process starts, so a loop that is measured against a
worker needs a process of its own. The server keeps the environment that a user's shell would give it.

One setting is left as torch has it: how many prepared matrix products are kept. Workers keep few, which suffices for
batches of one frame per sequence; the native loop has other sizes at every step, and with as few its 30-step rollouts
in bfloat16 were measured to take 1.4 times as long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.served.deployment import Deployed
from mstar_rt.config import worker_environment

THREADS = 1
LEFT_TO_TORCH = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")


def run_like_a_worker(module: str, server: Deployed, args: argparse.Namespace) -> int:
    """Run `python -m module` against the server with the options of `mstar-rt bench`; returns its exit status."""
    command = [sys.executable, "-m", module, str(server.file), server.address]
    command += ["--quick"] if args.quick else []
    for name in ("json", "png"):
        path = getattr(args, name)
        command += [f"--{name}", path] if path else []
    environment = {name: value for name, value in worker_environment(THREADS).items() if name not in LEFT_TO_TORCH}
    return subprocess.run(command, env=environment, check=False).returncode


def arguments() -> tuple[Deployed, argparse.Namespace]:
    """What `run_like_a_worker` has handed to this process, which gets a worker's threads."""
    torch.set_num_threads(THREADS)
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("address")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--png")
    args = parser.parse_args()
    return Deployed(args.file, args.address), args
