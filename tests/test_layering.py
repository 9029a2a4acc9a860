"""The table of who may import whom holds, and the light rooms really run without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_import_contracts_hold() -> None:
    script = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "room",
    ["mstar_rt.graph", "mstar_rt.program", "mstar_rt.placement", "mstar_rt.message", "mstar_rt.conductor", "mstar_rt.client",
     "mstar_rt.server.edge", "mstar_rt.launch", "sim_bridge", "world_models.vjepa2.model",
     "world_models.vjepa2_video.model", "policies.act.model", "policies.diffusion.model"],
)  # fmt: skip
def test_light_rooms_load_no_torch(room: str) -> None:
    script = f"import sys, {room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=100).returncode == 0
