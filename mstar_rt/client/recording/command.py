"""`mstar-rt replay`."""

from __future__ import annotations

import argparse
import sys

from mstar_rt.client.blocking import connect
from mstar_rt.client.recording.replay import Replay, replay
from mstar_rt.connection_arguments import connection


def run(args: argparse.Namespace) -> int:
    """0: all chunks came out bit for bit; 1: they did not.

    Raises:  as `replay`.
    """
    with connect(args.address, **connection(args)) as client:
        done = replay(client, args.file, args.model, _show_progress if sys.stderr.isatty() else lambda _: None)
    for line in report(args.file, done):
        print(line)
    return 0 if done.first is None else 1


def report(file: str, done: Replay) -> list[str]:
    contents = done.contents
    num = len(contents.connections)
    lines = [f"{file}: {num} connection{'s' if num != 1 else ''}, {contents.num_chunks} chunks"]
    if contents.num_unanswered:
        lines.append(f"{contents.num_unanswered} observations have no chunk in the recording")
    if contents.ended:
        lines.append(f"the recording ends before its session: {contents.ended}")
    if contents.torn_bytes:
        lines.append(f"the last {contents.torn_bytes} bytes are no whole frame: the recorder died while it wrote them")
    if done.first is None:
        lines.append(f"{done.num_equal} chunks are equal, bit for bit")
        return lines
    lines.append(f"first difference: {done.first}")
    lines.append(
        f"{done.num_equal} of {done.num_chunks} chunks are equal, the others differ by at most {done.largest:.3g}"
    )
    if not done.seed_is_known:
        lines.append("the recording has no seed: where the policy draws noise, it is other noise now")
    return lines


def _show_progress(done: Replay) -> None:
    end = "\n" if done.num_chunks == done.contents.num_chunks else ""
    print(f"\r{done.num_chunks} of {done.contents.num_chunks} chunks", end=end, file=sys.stderr, flush=True)
