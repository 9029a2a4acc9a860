"""Entry point of a worker process; started by mstar_rt.launch, which sends the deployment on standard input."""

from __future__ import annotations

import argparse
import gc
import signal
import sys

from mstar_rt.lifetime import end_with_parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="mstar_rt.worker")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    end_with_parent(args.parent, signal.SIGKILL)
    # Who stops a whole process group (a service manager, Ctrl-C) means the server: it drains, then stops its workers.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    # Only now, as it takes seconds: a worker whose server is killed meanwhile must not outlive it. What modules define
    # stays, and a collector that walks it again and again takes a sixth of that time.
    gc.disable()
    from mstar_rt.worker.process import run

    gc.freeze()
    gc.enable()
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
