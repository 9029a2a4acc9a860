"""`mstar-rt demo`: robots on a simulated table, driven by a policy and by plans in a world model, both served.

Both parts run with their defaults; `mstar-rt demo policy` and `mstar-rt demo planner` run one, and take options.
`mstar-rt demo speech` and `mstar-rt demo image` need no simulator: a text, spoken, and a picture from words.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROBOTS = {"policy": "sim_bridge.demo_policy", "planner": "sim_bridge.demo_planner"}
PARTS = {**ROBOTS, "speech": "sim_bridge.demo_speech", "image": "sim_bridge.demo_image"}
"""Modules; `main(argv)` of each returns 0 only if its robots, its voice or its pictures are what they should be."""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in PARTS:
        return int(importlib.import_module(PARTS[argv[0]]).main(argv[1:]))
    args = _arguments(argv)
    return max([_in_a_process_of_its_own(name, Path(args.output) / name) for name in ROBOTS])


def _in_a_process_of_its_own(part: str, output: Path) -> int:
    """gRPC's asyncio side does not outlive the event loop that it was first used on, and each part brings its own."""
    print(f"==== {part}", flush=True)
    command = [sys.executable, "-m", "mstar_rt.cli", "demo", part, "--output", str(output)]
    return subprocess.run(command, check=False).returncode


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mstar-rt demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), help="run this part only; it has options of its own")
    parser.add_argument("--output", default="out/demo", help="folder for what the parts write, a folder each")
    args = parser.parse_args(argv)
    if args.part is not None:
        parser.error(f"give the part first: mstar-rt demo {args.part} --output ...")
    return args
