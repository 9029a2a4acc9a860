"""The command line: what a caller can mend is one sentence on stderr and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstar_rt.cli import main

TABLETOP = str(Path(__file__).parents[1] / "configs" / "tabletop.yaml")


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


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("serve", "nowhere.yaml"), "no configuration file at nowhere.yaml"),
        (("check", "nowhere.yaml"), "no configuration file at nowhere.yaml"),
        (("serve", TABLETOP, "--port", "70000"), "--port is 70000, expected 0 to 65535"),
        (("graph", "vjepa"), "unknown model family 'vjepa', did you mean 'vjepa2_ac'?"),
        (("graph", "vjepa2_ac", "--walk", "plann"), "'plann'"),
        (("graph", "tabeltop", "--config", TABLETOP), "has no model 'tabeltop', did you mean 'tabletop'?"),
        (("bench", "everything"), "no benchmark 'everything'"),
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
