"""Speech and text: transformers' generate and the `snac` package in a loop, against the same models served.

No checkpoint of Orpheus' family is small enough, so the speaking ones are random, in the published layout (see
`checkpoints`); text has SmolLM2-135M with its real weights besides.
"""

from __future__ import annotations

import argparse

from benchmarks.served.worker_process import run_like_a_worker
from benchmarks.speech.deployment import deployed


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    with deployed(args.quick) as server:
        return run_like_a_worker("benchmarks.speech.measure", server, args)
