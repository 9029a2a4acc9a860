"""The command line: what a caller can mend is one sentence on stderr and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mstar_rt.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
TABLETOP, TABLETOP_SPLIT = str(CONFIGS / "tabletop.yaml"), str(CONFIGS / "tabletop_split.yaml")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("form", ["text", "mermaid", "svg"])
def test_graph_draws_every_walk(capsys: pytest.CaptureFixture[str], form: str) -> None:
    status, out, _ = run(capsys, "graph", "vjepa2_ac", "--format", form)
    assert status == 0
    assert "predict" in out
    assert "cem" in out


def test_graph_draws_one_walk_into_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    status, out, _ = run(
        capsys,
        "graph",
        "tabletop",
        "--config",
        TABLETOP,
        "--walk",
        "encode",
        "--format",
        "svg",
        "--output",
        str(file),
    )
    assert (status, out) == (0, "")
    assert file.read_text().lstrip().startswith("<svg")
    assert "cem" not in file.read_text()


def test_check_prints_who_runs_where(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", TABLETOP)
    assert status == 0
    assert "rank 0: cpu, float32, 1 thread(s)" in out
    assert "tabletop (vjepa2_ac): " in out


def test_check_says_that_a_policy_may_leave_steps_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", str(CONFIGS / "tabletop_policy.yaml"))
    assert "  anytime: fewer denoise steps where a session's budget_ms asks for it" in out.splitlines()


def test_check_refuses_a_folder_for_traces_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = yaml.safe_load(Path(changed_split(tmp_path)).read_text())
    data["workers"][1]["dtype"] = "float32"
    file = tmp_path / "traced.yaml"
    for folder, status in (("traces/of/robots", 0), ("split.yaml/traces", 2)):  # relative to the file
        data["server"] = {"trace_dir": folder}
        file.write_text(yaml.safe_dump(data))
        found, out, err = run(capsys, "check", str(file))
        assert found == status
        assert (f"go to {tmp_path}/traces/of/robots, which will be made" in out) == (status == 0)
        assert ("split.yaml is no folder; name another folder" in err) == (status == 2)
    assert not (tmp_path / "traces").exists()


def test_check_prints_what_crosses_between_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "check", TABLETOP_SPLIT)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "  tabletop (vjepa2_ac): encode, observe_goal, observe" in lines
    assert "  walk encode: rank 0" in lines
    assert "  walk plan: ranks 0, 1" in lines
    of_plan = lines[lines.index("  walk plan: ranks 0, 1") :]
    (goal,) = (" ".join(line.split()) for line in of_plan if "observe_goal.goal " in line)
    assert goal == "observe_goal.goal -> predict.goal rank 0 -> rank 1 once"
    assert "warning" not in out


def changed_split(folder: Path, **rules: list[int]) -> str:
    """The split deployment with `node` on `ranks` for every keyword, and bfloat16 on rank 1."""
    data = yaml.safe_load(Path(TABLETOP_SPLIT).read_text())
    data["models"][0]["checkpoint"] = str(CONFIGS / data["models"][0]["checkpoint"])
    data["workers"][1]["dtype"] = "bfloat16"
    data["placement"] += [{"model": "tabletop", "nodes": [node], "ranks": ranks} for node, ranks in rules.items()]
    file = folder / "split.yaml"
    file.write_text(yaml.safe_dump(data))
    return str(file)


def test_check_warns_of_a_worker_without_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "check", changed_split(tmp_path, **{"*": [0]}))
    assert (status, err) == (0, "")
    assert "warning: rank 1 runs no node; place nodes there or take the worker out of the file" in out


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"remember": [0]}, "cache 'world' of model 'tabletop' moves between rank 0 (float32) and rank 1 (bfloat16)"),
        ({"predict": [2]}, "placement[2]: rank 2 has no worker, the workers are [0, 1]"),
        ({"predictor": [1]}, "placement[2]: model 'tabletop' has no node 'predictor', did you mean 'predict'?"),
    ],
)
def test_check_ends_with_the_reason_if_a_placement_cannot_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rules: dict[str, list[int]], sentence: str
) -> None:
    status, out, err = run(capsys, "check", changed_split(tmp_path, **rules))
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("serve", "nowhere.yaml"), "no configuration file at nowhere.yaml"),
        (("check", "nowhere.yaml"), "no configuration file at nowhere.yaml"),
        (("serve", TABLETOP, "--port", "70000"), "--port is 70000, expected 0 to 65535"),
        (("graph", "vjepa_ac"), "unknown model family 'vjepa_ac', did you mean 'vjepa2_ac'?"),
        (("graph", "vjepa2_ac", "--walk", "plann"), "'plann'"),
        (("graph", "tabeltop", "--config", TABLETOP), "has no model 'tabeltop', did you mean 'tabletop'?"),
        (("bench", "everything"), "no benchmark 'everything'"),
        (("bench", "runtime", "--json", "nowhere/it.json"), "--json is nowhere/it.json, whose folder does not exist"),
        (("bench", "runtime", "--png", "/nowhere/it.png"), "--png is /nowhere/it.png, whose folder does not exist"),
    ],
)
def test_mistakes_end_with_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_an_unknown_key_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(Path(TABLETOP).read_text() + "\nextra: 1\n")
    status, _, err = run(capsys, "serve", str(file))
    assert status == 2
    assert "unknown key 'extra'" in err


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", TABLETOP, "--prot", "1"])
    assert caught.value.code == 2
