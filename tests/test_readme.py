"""What the pages show is run as printed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mstar_rt import graph
from mstar_rt.cli import main
from mstar_rt.client import connect
from mstar_rt.config import DeploymentConfig, ModelConfig, PlacementRule, ServerConfig, WorkerConfig, parse_deployment
from mstar_rt.config_admission import AdmissionConfig
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import GraphError
from sim_bridge.server_process import served

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(ROOT / "configs" / "tabletop.yaml") as address:
        yield address


@pytest.fixture(scope="module")
def policy_address() -> Iterator[str]:
    with served(ROOT / "configs" / "tabletop_policy.yaml") as address:
        yield address


@pytest.mark.system
@pytest.mark.parametrize(
    ("page", "num_lines", "said"), [("README.md", 20, "corner: "), ("docs/robots.md", 40, "solved")]
)
def test_the_policy_script_brings_the_robot_to_its_goal(
    page: str, num_lines: int, said: str, policy_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = blocks(page, "python")[0]
    assert len(script.splitlines()) <= num_lines
    assert "127.0.0.1:50051" in script
    names: dict[str, Any] = {}
    exec(script.replace("127.0.0.1:50051", policy_address), names)
    assert names["solved"]
    assert said in capsys.readouterr().out


@pytest.mark.system
def test_the_client_script_brings_the_robot_to_its_goal(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = blocks("README.md", "python")[1]
    assert len(script.splitlines()) <= 15
    assert "127.0.0.1:50051" in script
    exec(script.replace("127.0.0.1:50051", address), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    distances_mm = [int(line.split(" mm")[0]) for line in lines]
    assert distances_mm[-1] < 30 < distances_mm[0]


@pytest.mark.system
def test_an_environment_is_driven_recorded_and_replayed(
    policy_address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = blocks("docs/robots.md", "python")
    drives, maps, reads = (
        next(code for code in page if what in code) for what in ("record=", "GymMapping", "RecordingR")
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in (drives, maps):
        exec(code.replace("127.0.0.1:50051", policy_address), names)
    said = capsys.readouterr().out
    assert said.startswith("1 episode, ")
    assert "success 1.00" in said
    assert said.endswith("1.0 of 2\n")
    exec(reads, names)
    num_chunks = len(capsys.readouterr().out.splitlines())
    (command,) = re.findall(r"^mstar-rt (replay .*)$", (ROOT / "docs/robots.md").read_text(), re.MULTILINE)
    assert main(command.replace("127.0.0.1:50051", policy_address).split()) == 0
    shown = next(text for text in blocks("docs/robots.md", "text") if "bit for bit" in text)
    assert capsys.readouterr().out == re.sub(r"\b\d+ chunks", f"{num_chunks} chunks", shown)


@pytest.mark.system
def test_any_task_runs_by_its_name(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = blocks("docs/serving.md", "python")
    with connect(address) as client:
        names: dict[str, Any] = {
            "client": client,
            "frames": np.zeros((1, 64, 64, 3), np.uint8),
            "state": np.zeros(7, np.float32),
        }
        exec(script, names)
    assert capsys.readouterr().out.startswith("latents () (1, 4, 128) encode\n")
    assert {output.name for output in names["outputs"]} == {"plan_actions", "plan_cost", "elite_std"}


@pytest.mark.system
def test_the_planner_brings_the_robot_to_its_goal(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the page's other pieces of code, in order: each goes on with the names of those before it."""
    planner, *others = blocks("docs/planning.md", "python")
    assert len(planner.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(planner.replace("127.0.0.1:50051", address), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    distances_mm = [int(line.split(" mm")[0]) for line in lines]
    assert distances_mm[-1] < 30 < distances_mm[0]
    for code in others:
        exec(code.replace("127.0.0.1:50051", address), names)
    names["client"].close()
    seen = [line.split(" frames")[0] for line in capsys.readouterr().out.splitlines() if "frames seen" in line]
    assert seen == ["1", "2", "3", "3"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", file.read_text()):
        if "://" in target:
            continue
        linked = file.parent / target if target else file
        assert linked.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], f"{page} links to #{anchor}"


def test_the_printed_check_is_what_check_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["check", "configs/tabletop_split.yaml"]) == 0
    assert capsys.readouterr().out in blocks("docs/serving.md", "text")


def test_the_printed_deployment_is_one() -> None:
    deployment, rules = map(yaml.safe_load, blocks("docs/serving.md", "yaml"))
    assert parse_deployment(deployment).models[0].family == "vjepa2_ac"
    for rule in rules["placement"]:
        assert set(rule) <= {field.name for field in dataclasses.fields(PlacementRule)}


def test_every_key_and_its_default_are_listed() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \| (.*?) \|", (ROOT / "docs" / "serving.md").read_text(), re.MULTILINE)
    listed: dict[str, str] = {}
    for keys, default in rows:
        first, *more = re.findall(r"`([^`]+)`", keys)
        prefix = first.rpartition(".")[0]
        listed |= dict.fromkeys([first, *(prefix + other for other in more)], default.strip("`"))
    nested = {"server": ServerConfig, "workers[]": WorkerConfig, "models[]": ModelConfig, "placement[]": PlacementRule,
              "admission": AdmissionConfig, "process": ProcessConfig}  # fmt: skip
    for prefix, kind in nested.items():
        for field in dataclasses.fields(kind):
            default = listed[f"{prefix}.{field.name}"]
            if isinstance(field.default, bool | int | float):
                assert (
                    default == f"{field.default:g}"
                    if not isinstance(field.default, bool)
                    else str(field.default).lower()
                )
            elif isinstance(field.default, str) and field.default:
                assert default == field.default
    assert listed["warmup_timeout_s"] == f"{DeploymentConfig('d', ()).warmup_timeout_s:g}"


def test_the_printed_graph_is_drawn_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    script = blocks("docs/graph.md", "python")[0]
    exec(script, {})
    assert capsys.readouterr().out.rstrip() == blocks("docs/graph.md", "text")[0].rstrip()


def test_the_printed_chunks_are_those_of_the_policies() -> None:
    rows = re.findall(
        r"^\| `(.*Policy\(.*\d.*\))` \| (.*/.*) \|$", (ROOT / "docs" / "graph.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 4
    for policy, chunks in rows:
        buffer = graph.StreamBuffer(eval(policy, vars(graph)))
        for item in range(10):
            buffer.push(item)
        buffer.finish()
        assert chunks == " / ".join(map(as_printed, iter(buffer.take, None))), policy


def as_printed(chunk: graph.StreamChunk) -> str:
    split = chunk.num_context, chunk.num_context + chunk.num_new
    context, new, lookahead = (" ".join(map(str, part)) for part in np.split(np.array(chunk.items), split))
    return f"{f'({context}) ' if context else ''}**{new}**{f' {lookahead}' if lookahead else ''}"


def test_the_printed_refusal_of_a_walk_that_waits_for_ever() -> None:
    decode = graph.GraphNode("decode", ("token",), ("token", "frame"))
    mix = graph.GraphNode("mix", ("frames", "token"), ("audio",))
    talking = graph.DynamicLoop("talking", decode, 64, carry={"token": "token"}, leave="decode")
    edge = graph.StreamingGraphEdge("decode.frame", "mix.frames", graph.FixedChunkPolicy(4))
    walk = graph.Walk("w", graph.Sequential(talking, graph.StreamLoop("sounding", mix)), ("audio",), edges=(edge,))
    with pytest.raises(GraphError) as refusal:
        graph.WalkGraph((decode, mix), (walk,))
    assert f"{refusal.value}\n" in blocks("docs/graph.md", "text")
