"""The shipped model draws what it is told: the demo, the page's script, and the picture of the graph."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mstar_rt.cli import main
from mstar_rt.client import connect
from sim_bridge.server_process import served
from sim_bridge.shapes import judge, read_caption

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
PROMPTS = ("a green cross on grey", "a red triangle on white", "a blue circle on yellow", "a black square on cyan")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(ROOT / "configs" / "shapes.yaml") as address:
        yield address


def test_the_demo_writes_what_the_judge_accepts(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "image", PROMPTS[0], "--address", address, "--output", str(tmp_path)]) == 0
    picture = cv2.cvtColor(cv2.imread(str(tmp_path / "image.png")), cv2.COLOR_BGR2RGB)
    assert judge(picture).shows(read_caption(PROMPTS[0]))
    assert re.search("the judge sees a (small|large) green cross on grey", capsys.readouterr().out)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["accepted"]
    assert summary["num_steps"] > 1


def test_the_pages_script_draws_edits_and_answers(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "images.md").read_text()
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert "127.0.0.1:50051" in script
    names: dict[str, Any] = {}
    exec(script.replace("127.0.0.1:50051", address), names)
    assert judge(names["drawn"].image).shows(read_caption("a red triangle on white"))
    assert judge(names["blue"].image).shows(read_caption("a blue triangle on white"))
    assert capsys.readouterr().out.splitlines()[-1] == "blue"
    assert (tmp_path / "triangle.png").is_file()


def test_prompts_and_seeds_count_alone_and_at_once(address: str) -> None:
    with connect(address) as client:
        alone = [client.draw("shapes", prompt, seed=1).images()[0].image for prompt in PROMPTS]
        streams = [client.draw("shapes", prompt, seed=1) for prompt in PROMPTS]
        at_once = [stream.images()[0].image for stream in streams]
        other = client.draw("shapes", PROMPTS[0], seed=4).images()[0].image
    for prompt, one, same in zip(PROMPTS, alone, at_once, strict=True):
        assert judge(one).shows(read_caption(prompt)), prompt
        np.testing.assert_allclose(one.astype(int), same.astype(int), atol=1)  # other sums, then rounded to bytes
    assert (alone[0] != other).any()


def test_the_page_shows_the_graph_as_it_is(tmp_path: Path) -> None:
    one, whole = tmp_path / "image_gen.txt", tmp_path / "graph.svg"
    assert main(["graph", "bagel", "--walk", "image_gen", "--output", str(one)]) == 0
    assert f"```text\n{one.read_text().rstrip()}\n```" in (ROOT / "docs" / "images.md").read_text()
    assert main(["graph", "bagel", "--format", "svg", "--output", str(whole)]) == 0
    assert whole.read_text() == (ROOT / "docs" / "bagel_graph.svg").read_text()
