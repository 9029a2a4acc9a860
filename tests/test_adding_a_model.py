"""docs/adding-a-model.md is run exactly as printed: from its folder by dotted path, and installed by entry point."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-model.md"
SERVE = re.compile(r"^    PYTHONPATH=(\S+) (mstar-rt serve .*)$", re.MULTILINE)
FILE = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, in a folder."""
    folder = tmp_path_factory.mktemp("project")
    for name, content in FILE.findall(PAGE.read_text()):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def addresses(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Both ways to name the family, each served from where the other cannot be found."""
    installed = tmp_path_factory.mktemp("installed")
    by_name = tmp_path_factory.mktemp("elsewhere") / "melody.yaml"
    text = (project / "melody.yaml").read_text()
    by_name.write_text(text.replace('family: "melody.model:declare"', "family: melody"))
    assert by_name.read_text() != text
    run(
        project, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(installed), "."
    )
    servers = {
        "dotted path": start(project, *printed_command()),
        "entry point": start(by_name.parent, ["mstar-rt", "serve", "melody.yaml"], path=str(installed)),
    }
    try:
        yield {way: address_of(server) for way, server in servers.items()}
    finally:
        for server in servers.values():
            server.terminate()
            _, said = server.communicate(timeout=30)
            assert server.returncode == 0, said


def run(folder: Path, *arguments: str, path: str = ".") -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=90, env=environment(path)
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def printed_command() -> tuple[list[str], str]:
    """How the page serves the model, and the PYTHONPATH that it gives."""
    found = SERVE.search(PAGE.read_text())
    assert found is not None
    return shlex.split(found[2]), found[1]


def start(folder: Path, command: list[str], path: str) -> subprocess.Popen[str]:
    """On any free port, by the script that was installed with this Python."""
    script = Path(sys.executable).with_name(command[0])
    return subprocess.Popen(
        [str(script), *command[1:], "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(path),
    )  # fmt: skip


def environment(path: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": path}


def address_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert " on 127.0.0.1:" in line, server.communicate()[1]
    return line.split()[-1]


@pytest.fixture(scope="module")
def heard(project: Path, addresses: dict[str, str]) -> dict[str, list[str]]:
    """What the page's client prints, by how the family was named."""
    return {way: run(project, "listen.py", address).splitlines() for way, address in addresses.items()}


@pytest.mark.parametrize("way", ["dotted path", "entry point"])
def test_the_client_hears_what_the_page_promises(heard: dict[str, list[str]], way: str) -> None:
    notes = [int(line.split(": ")[1]) for line in heard[way] if line.startswith("note")]
    chunks = [line for line in heard[way] if line.startswith("chunk")]
    assert chunks == ["chunk 0: 4000 samples", "chunk 1: 4000 samples", "chunk 2: 2000 samples"]
    assert len(notes) == 10
    assert all(abs(one - other) <= 2 for one, other in zip([3, *notes], notes, strict=False))


def test_both_ways_give_the_same_melody(heard: dict[str, list[str]]) -> None:
    one, other = map(sorted, heard.values())
    assert one == other


def test_the_tools_of_the_page_see_the_model(project: Path) -> None:
    checked = run(project, "-m", "mstar_rt.cli", "check", "melody.yaml")
    assert "compose" in checked
    assert "render" in checked
    assert "rendering" in run(project, "-m", "mstar_rt.cli", "graph", "melody", "--config", "melody.yaml")


def test_the_model_is_as_long_as_promised(project: Path) -> None:
    lines = [(project / "melody" / name).read_text().splitlines() for name in ("model.py", "nodes.py")]
    assert 60 <= sum(map(len, lines)) <= 100
