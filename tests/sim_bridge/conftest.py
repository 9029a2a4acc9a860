"""Bridges are tested against the toy edge of tests/server."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "server"), str(Path(__file__).parent)]
