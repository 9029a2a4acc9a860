"""The walks give what the published inference code gives, through the engines that serve them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from generators.bagel.processor import to_image
from tests.models import bagel_tiny
from tests.models.bagel_requests import (
    ASK,
    DRAW,
    EDIT,
    drawn,
    give_noise,
    give_pixels,
    last,
    picture,
    said,
    tiny_driver,
    tokens,
)  # fmt: skip
from tests.models.walk_driver import Request, WalkDriver

GOLDEN = bagel_tiny.golden()
TOLERANCE = 2e-5
GRID = (8, 8)
TEXT_TO_IMAGE = bagel_tiny.described()["t2i"]
EDITS = bagel_tiny.described()["edit"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> WalkDriver:
    return tiny_driver(tmp_path_factory.mktemp("bagel"))


@pytest.fixture
def driver(shared: WalkDriver) -> Iterator[WalkDriver]:
    shared.share_of = None
    yield shared
    assert shared.num_pages_held == 0


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE)


def edit(mode: str) -> Request:
    options = {
        "text_guidance": EDITS["cfg_text_scale"], "image_guidance": EDITS["cfg_img_scale"],
        "guidance_start": EDITS["cfg_interval"][0], "guidance_end": EDITS["cfg_interval"][1],
        "renormalization": mode, "renormalization_min": EDITS["renorm_min"][mode],
    }  # fmt: skip
    return Request("edit_image", {**said(EDIT), **picture()}, options)


def test_the_defaults_are_those_of_the_golden_run(driver: WalkDriver) -> None:
    usual = {param.name: param.default for param in driver.loaded.model.task("text_to_image").params}
    assert [usual["text_guidance"], usual["image_guidance"]] == [
        TEXT_TO_IMAGE["cfg_text_scale"], TEXT_TO_IMAGE["cfg_img_scale"],
    ]  # fmt: skip
    assert [usual["guidance_start"], usual["guidance_end"]] == TEXT_TO_IMAGE["cfg_interval"]
    assert [usual["renormalization"], usual["renormalization_min"]] == [
        TEXT_TO_IMAGE["renorm"], TEXT_TO_IMAGE["renorm_min"],
    ]  # fmt: skip


def test_text_to_image(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    give_noise(monkeypatch, driver, GOLDEN["t2i_noise"], GRID)
    served = driver.run_one("text_to_image", said(DRAW), latents_every=7)
    close(drawn(served), GOLDEN["t2i_latents"])
    close(last(served, "latents"), GOLDEN["t2i_latents"])
    difference = last(served, "image").int() - to_image(GOLDEN["t2i_image"]).int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("mode", ["text_channel", "global", "channel"])
def test_edits(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    give_noise(monkeypatch, driver, GOLDEN["edit_noise"], GRID)
    give_pixels(monkeypatch, driver, GOLDEN["edit_image"], GOLDEN["edit_vit_image"])
    close(drawn(driver.run(edit(mode))[0]), GOLDEN[f"edit_latents_{mode}"])


def test_edits_of_all_modes_at_once_and_in_parts(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    give_noise(monkeypatch, driver, GOLDEN["edit_noise"], GRID)
    give_pixels(monkeypatch, driver, GOLDEN["edit_image"], GOLDEN["edit_vit_image"])
    for share in (None, 1, 2, 3):
        driver.share_of = None if share is None else lambda num_left, most=share: min(num_left, most)  # type: ignore[misc]
        served = driver.run(*map(edit, ("text_channel", "global", "channel")))
        for mode, one in zip(("text_channel", "global", "channel"), served, strict=True):
            close(drawn(one), GOLDEN[f"edit_latents_{mode}"])
    assert ("flow", 9) in driver.batches


def test_an_answer_about_an_image(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    give_pixels(monkeypatch, driver, GOLDEN["edit_image"], GOLDEN["edit_vit_image"])
    begin, *answer = GOLDEN["answer_ids"].tolist()
    served = driver.run_one("describe_image", {**said(ASK), **picture()}, max_tokens=len(answer), ignore_end=True)
    assert tokens(served) == answer
    assert begin == bagel_tiny.tokenizer().token_to_id("<|im_start|>")
