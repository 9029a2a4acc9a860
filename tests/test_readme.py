"""What the README shows is run as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim_bridge.server_process import served

ROOT = Path(__file__).parents[1]


@pytest.mark.system
def test_the_client_script_brings_the_robot_to_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    script = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert script is not None
    assert len(script.group(1).splitlines()) <= 15
    assert "127.0.0.1:50051" in script.group(1)
    with served(ROOT / "configs" / "tabletop.yaml") as address:
        exec(script.group(1).replace("127.0.0.1:50051", address), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    distances_mm = [int(line.split(" mm")[0]) for line in lines]
    assert distances_mm[-1] < 30 < distances_mm[0]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{page} links to {target}"
