"""`mstar-rt check`: what it prints of a deployment that works, and its one sentence on one that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mstar_rt.cli import main

EVERYTHING_CROSSES = [
    {"nodes": ["decode"], "ranks": [1]},
    {"nodes": ["codec", "uncond"], "ranks": [2, 3]},
    {"nodes": ["look"], "walks": ["see"], "ranks": [1]},
    {"nodes": ["look"], "walks": ["paint"], "ranks": [2]},
]

GOLDEN = """\
rank 0: cpu, float32, 1 thread(s)
  robot (crossing): prefill, look (speak), polish, velocity (paint.cond), combine, show
rank 1: cpu, float32, 1 thread(s)
  robot (crossing): look (see), decode
rank 2: cpu, float32, 1 thread(s)
  robot (crossing): codec, look (paint), velocity (paint.uncond)
rank 3: cpu, float32, 1 thread(s)
  robot (crossing): codec, velocity (paint.uncond)
rank 4: cpu, float32, 1 thread(s)
warning: rank 4 runs no node; place nodes there or take the worker out of the file
model robot:
  replicas on ranks 2, 3 (any for each request): speak.codec, paint.uncond
  walk see: rank 1
  walk answer: ranks 0, 1
    prefill.token -> decode.token  rank 0 -> rank 1  once, with pages of cache 'text'
  walk speak: ranks 0, 1, 2, 3
    prefill.token -> decode.token  rank 0 -> rank 1       once, with pages of cache 'text'
    decode.code -> codec.codes     rank 1 -> one of 2, 3  every iteration of 'talking', read in chunks
    codec.sound -> polish.sound    one of 2, 3 -> rank 0  every chunk of 'sounding'
    codec: does 'sounding' go on   one of 2, 3 -> rank 0  every chunk of 'sounding'
    codec: decode may go on        one of 2, 3 -> rank 1  every chunk of 'sounding'
  walk paint: ranks 0, 2, 3
    look.context -> cond.context        rank 2 -> rank 0       once
    look.context -> uncond.context      rank 2 -> one of 2, 3  once
    uncond.velocity -> combine.without  one of 2, 3 -> rank 0  every iteration of 'denoising'
    combine.latent -> uncond.latent     rank 0 -> one of 2, 3  every iteration of 'denoising'
    combine: does 'denoising' go on     rank 0 -> one of 2, 3  every iteration of 'denoising'
  between walks:
    context, persisted by 'see'                  rank 1 -> rank 0  before 'answer'
    pages of cache 'text', kept for the session  rank 0 -> rank 1  before 'answer' or 'speak'
    pages of cache 'text', kept for the session  rank 1 -> rank 0  before 'answer' or 'speak'
"""


class Check:
    """Runs `check` on a deployment of the crossing model."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.capsys = folder / "d.yaml", capsys

    def __call__(self, rules: list[dict[str, Any]], num_ranks: int = 5, **changes: Any) -> tuple[int, str, str]:
        data = {
            "name": "crossing",
            "models": [{"name": "robot", "family": "crossing_model:declare", "options": changes.pop("options", {})}],
            "workers": changes.pop("workers", [{"rank": rank} for rank in range(num_ranks)]),
            "placement": [{"model": "robot", **rule} for rule in rules],
        }
        self.file.write_text(yaml.safe_dump(data))
        status = main(["check", str(self.file)])
        captured = self.capsys.readouterr()
        first, _, rest = captured.out.partition("\n")
        assert not captured.out or first == f"{self.file}: deployment 'crossing' on 127.0.0.1:50051"
        return status, rest, captured.err


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return Check(tmp_path, capsys)


def test_all_that_crosses(check: Check) -> None:
    assert check(EVERYTHING_CROSSES) == (0, GOLDEN, "")


def test_on_one_rank_nothing_crosses_and_nothing_is_said_of_walks(check: Check) -> None:
    status, out, err = check([], num_ranks=1)
    assert (status, err) == (0, "")
    assert out == (
        "rank 0: cpu, float32, 1 thread(s)\n"
        "  robot (crossing): look, prefill, decode, codec, polish, velocity, combine, show\n"
    )


def test_what_a_decision_of_a_node_reaches(check: Check) -> None:
    _, out, _ = check([{"nodes": ["codec"], "ranks": [1]}, {"nodes": ["polish"], "ranks": [2]}], num_ranks=3)
    lines = [line.split("  ") for line in out.splitlines() if "go on" in line]
    assert [[part.strip() for part in line if part] for line in lines] == [
        ["codec: does 'sounding' go on", "rank 1 -> rank 2", "every chunk of 'sounding'"],
        ["codec: decode may go on", "rank 1 -> rank 0", "every chunk of 'sounding'"],
    ]


@pytest.mark.parametrize(
    ("lifetime", "reading"),
    [("walk", None), ("request", "before 'speak'"), ("session", "before 'answer' or 'speak'")],
)
def test_pages_cross_between_walks_that_share_a_request_or_a_session(
    check: Check, lifetime: str, reading: str | None
) -> None:
    _, out, _ = check([{"nodes": ["decode"], "ranks": [1]}], options={"cache_lifetime": lifetime})
    lines = [" ".join(line.split()) for line in out.splitlines() if "pages of cache 'text', kept" in line]
    what = f"pages of cache 'text', kept for the {lifetime}"
    expected = [f"{what} rank 0 -> rank 1 {reading}", f"{what} rank 1 -> rank 0 {reading}"]
    assert lines == (expected if reading else [])
    assert "once, with pages of cache 'text'" in out


def test_a_session_keeps_the_replica_that_keeps_something_for_it(check: Check) -> None:
    _, out, _ = check([{"nodes": ["prefill", "decode"], "ranks": [1, 2]}])
    assert "replicas on ranks 1, 2 (a session keeps its replica): answer.prefill, answer.decode, speak.prefill" in out
    _, out, _ = check([{"nodes": ["prefill", "decode"], "ranks": [1, 2]}], options={"cache_lifetime": "request"})
    assert "replicas on ranks 1, 2 (a session keeps its replica)" in out, "answer.prefill reads what `see` persists"
    _, out, _ = check([{"nodes": ["show"], "ranks": [1, 2]}])
    assert "replicas on ranks 1, 2 (any for each request): paint.show" in out


def test_what_cannot_work_is_one_sentence_and_exit_status_2(check: Check) -> None:
    status, out, err = check(
        [{"nodes": ["decode"], "ranks": [1]}], workers=[{"rank": 0}, {"rank": 1, "dtype": "bfloat16"}]
    )
    assert (status, out) == (2, "")
    assert err == (
        "mstar-rt: placement: cache 'text' of model 'robot' moves between rank 0 (float32) and rank 1 (bfloat16); "
        "give these workers the same dtype\n"
    )
    assert check([{"nodes": ["decoder"]}]) == (
        2, "", "mstar-rt: placement[0]: model 'robot' has no node 'decoder', did you mean 'decode'?\n",
    )  # fmt: skip
