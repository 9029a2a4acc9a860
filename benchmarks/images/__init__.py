"""Images from text: the published loop, one image after the other and every branch in every step, against the same
model served; the branches of guidance on two workers; and a robot beside those who ask for images.
"""

from __future__ import annotations

import argparse

from benchmarks.images.deployment import deployed
from benchmarks.served.worker_process import run_like_a_worker


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    with deployed(args.quick) as server:
        return run_like_a_worker("benchmarks.images.measure", server, args)
