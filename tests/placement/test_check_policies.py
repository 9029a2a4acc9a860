"""What `mstar-rt check` says of policies: what a robot has to bring, and what it gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mstar_rt.cli import main

MODELS = Path(__file__).parents[1] / "models"


def test_a_policy_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(MODELS))
    file = tmp_path / "robots.yaml"
    models = [{"name": "arm", "family": "toy_policy:declare"}, {"name": "numbers", "family": "toy_model:declare"}]
    file.write_text(yaml.safe_dump({"name": "robots", "models": models}))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "rank 0: cpu, float32, 1 thread(s)",
        "  arm (toy_policy): act",
        "  numbers (toy): add, remember, keep, recall",
        "policy arm:",
        "  cameras: top 16 x 16, wrist 16 x 16 (may be masked)",
        "  state: 3 (x m, y m, grip)",
        "  action: 2 (x m, y m), 8 in a chunk",
        "  takes: an instruction, normalization lab or field",
        "  chunking: guided, guided_identity, prefix (delay to 4)",
    ]
