"""The images benchmark: its loop against the published one, what is measured, and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from matplotlib import image

from benchmarks.images import deployment
from benchmarks.images.cases import BATCHES, MIN_SPEED, NUM_STEPS, Case, cases, placings
from benchmarks.images.native import Drawing, NativeBagel
from benchmarks.images.plot import plot
from benchmarks.images.systems import ALL_BRANCHES, SERVED
from benchmarks.report import Report, Row
from mstar_rt.config import parse_deployment
from tests.models.bagel_tiny import IMAGE_IDS, described, golden, write_folder

TOLERANCE = 2e-5
"""Latents of up to 4.5 in float32, in another order of sums than the reference's."""


@pytest.mark.parametrize(("skips", "num_passes"), [(False, 3 * 7), (True, 13)])
def test_the_loop_is_the_published_one(skips: bool, num_passes: int, tmp_path: Path) -> None:
    """With branches that have no effect, or without them."""
    loop, known, asked = NativeBagel(write_folder(tmp_path / "bagel")), golden(), described()
    start, end = asked["t2i"]["cfg_interval"]
    how = Drawing(asked["steps"] - 1, asked["timestep_shift"], asked["t2i"]["cfg_text_scale"], start, end, skips)
    ids = torch.tensor([196, *known["t2i_prompt_ids"].tolist(), 197])
    with torch.inference_mode():
        latents = loop.latents(ids, known["t2i_noise"], (8, 8), IMAGE_IDS, how)
    torch.testing.assert_close(latents, known["t2i_latents"], rtol=0, atol=TOLERANCE)
    assert loop.num_passes == num_passes


def test_an_image_comes_of_a_prompt_and_noise(tmp_path: Path) -> None:
    loop = NativeBagel(write_folder(tmp_path / "bagel"))
    how = Drawing(2, 3.0, 4.0, 0.4, 1.0)
    noise = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(0))
    one, same, other = (loop.draw(prompt, noise, how) for prompt in ("a red cross", "a red cross", "a blue cross"))
    assert (one.shape, one.dtype.name) == ((12, 8, 3), "uint8")
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("quick", [True, False])
def test_the_deployment_has_what_is_measured(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(deployment, "write_checkpoint", lambda size, folder: written.append(folder))
    config = parse_deployment(deployment.describe(tmp_path, quick))
    assert {case.model for case in cases(quick)} <= {model.name for model in config.models}
    assert {model.name for model in config.models} == {placing.name for placing in placings(quick)}
    assert len(written) == (not quick)
    threads = {worker.rank: worker.threads for worker in config.workers}
    ranks = {rule.ranks[0]: rule for rule in config.placement}
    assert set(ranks) == set(threads), "every worker has something to do, and one model"
    if not quick:
        assert sorted(threads.values()) == [1, 1, 1, 1, 2]
        apart = [rule for rule in config.placement if rule.nodes == ("flow_without_text",)]
        assert [threads[rule.ranks[0]] for rule in apart] == [1]


def test_what_is_asked_for_is_measured() -> None:
    assert BATCHES == (1, 2, 4)
    assert (MIN_SPEED[1], MIN_SPEED[4]) == (1.5, 2.0)
    assert all(case.num_steps == NUM_STEPS == 49 for case in cases(False))
    for quick in (True, False):
        assert all(case.batches == BATCHES for case in cases(quick))


def test_the_picture_has_a_panel_for_each_model(tmp_path: Path) -> None:
    report, case = Report("images", {}), Case("shapes", BATCHES, 1)
    for batch in BATCHES:
        for system in (ALL_BRANCHES, SERVED):
            report.rows.append(Row(case.name(batch), system, "images", batch + 0.5, "1/s"))
    plot(report, str(tmp_path / "images.png"))
    assert image.imread(tmp_path / "images.png").shape[2] == 4
    assert re.fullmatch(r".+, 49 steps, 4 at once", case.name(4))
