"""`mstar-rt` whose processes have the allocator's settings that a user's shell would give them."""

from __future__ import annotations

import os
import sys

from mstar_rt import cli, launch, supervision
from mstar_rt.config import worker_environment


def _environment(threads: int) -> dict[str, str]:
    own = os.environ.keys()
    return {
        name: value
        for name, value in worker_environment(threads).items()
        if name in own or not name.startswith("MALLOC_")
    }


def _nothing(megabytes: int = 0) -> bool:
    return False


if __name__ == "__main__":
    supervision.worker_environment = _environment
    launch.keep_freed_memory = _nothing
    sys.exit(cli.main())
