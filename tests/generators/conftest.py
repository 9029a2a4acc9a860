"""The tiny models and the driver of walks are importable by name, as in the other rooms."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
