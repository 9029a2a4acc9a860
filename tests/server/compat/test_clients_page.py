"""What docs/clients.md shows and lists, and the deployment that it is about."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mstar_rt.cli import main
from mstar_rt.config import parse_deployment
from mstar_rt.config_dialects import DialectConfig

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "clients.md").read_text()
CLIENTS = ROOT / "configs" / "tabletop_clients.yaml"


def test_the_printed_dialects_are_some() -> None:
    models = [{"name": "policy", "family": "pi05"}]
    found = []
    for block in re.findall(r"```yaml\n(dialects:.*?)```", PAGE, re.DOTALL):
        found += parse_deployment({"name": "test", "models": models, **yaml.safe_load(block)}).dialects
    assert (found[0].port, found[0].state and found[0].state[1].scale) == (8000, (-1.0,))


def test_every_key_of_a_dialect_is_listed() -> None:
    table = PAGE[PAGE.index("| key |") : PAGE.index("Nested messages")]
    listed = {key for row in table.strip().splitlines() for key in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    assert listed == {field.name for field in dataclasses.fields(DialectConfig)}


def checked(capsys: pytest.CaptureFixture[str], tmp_path: Path, **changes: Any) -> tuple[int, str, str]:
    """`mstar-rt check` of the shipped deployment with a changed openpi block."""
    data = yaml.safe_load(CLIENTS.read_text())
    data["models"][0]["checkpoint"] = str(CLIENTS.parent / data["models"][0]["checkpoint"])
    data["dialects"] = [next(block for block in data["dialects"] if block["kind"] == "openpi") | changes]
    file = tmp_path / "clients.yaml"
    file.write_text(yaml.safe_dump(data))
    status = main(["check", str(file)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_check_says_what_clients_send_and_get(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(CLIENTS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("dialect openpi on 127.0.0.1:8000: policy policy, 5 actions of a chunk at 20 Hz, no keys")
    assert lines[start + 1 : start + 6] == [
        "  camera top: 'observation/image', hwc uint8",
        "  camera wrist: 'observation/wrist_image', hwc uint8",
        "  state: 'observation/state' 2",
        "  instruction: 'prompt'",
        "  actions: 'actions' 2",
    ]
    assert [line.split(":")[0] for line in lines if line.startswith("dialect")] == [
        "dialect lerobot on the server's port", "dialect openpi on 127.0.0.1", "dialect gr00t on 127.0.0.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state": [{"key": "q", "size": 3}]}, "1 difference: state has 3 numbers (q 3), expected 2"),
        ({"host": "0.0.0.0"}, "dialects[0].host '0.0.0.0' can be reached from other machines"),
        ({"api_keys_file": "nowhere"}, "nowhere"),
        ({"options": {"num_denoise_steps": 10_000}}, "num_denoise_steps"),
    ],
)
def test_check_refuses_what_nobody_could_use(
    changes: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, err = checked(capsys, tmp_path, **changes)
    assert status == 2
    assert sentence in err
