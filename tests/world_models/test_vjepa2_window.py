"""A context window that slides: which frames are seen, and that the cache made anew equals the dense predictor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.errors import InvalidArgument
from tests.world_models.dense_imagination import first_seen, imagine, random_scene
from world_models.planning.window import Window, window_of
from world_models.vjepa2.checkpoint import Networks, random_networks
from world_models.vjepa2.config import VJepa2Config

SHAPE = (16, 64)
WINDOWS = st.integers(1, 12).flatmap(lambda size: st.builds(Window, st.just(size), st.integers(1, size)))


@given(WINDOWS, st.integers(1, 60))
def test_the_window_starts_where_the_formula_says(window: Window, num_frames: int) -> None:
    options = {"context_window": window.size, "window_stride": window.stride}
    assert window.start(num_frames) == first_seen(num_frames, options)
    num_seen = num_frames - window.start(num_frames)
    assert min(num_frames, window.size - window.stride + 1) <= num_seen <= window.size


@given(WINDOWS, st.integers(1, 60), st.integers(0, 40))
def test_frames_are_kept_as_long_as_a_slide_may_ask_for_them(window: Window, num_frames: int, more: int) -> None:
    end = num_frames + more
    slides = [frames for frames in range(num_frames, end + 1) if window.slides_at(frames)]
    needed = max(1, num_frames - window.start(slides[0])) if slides else 1
    assert window.num_needed(num_frames, end) == needed
    assert window.num_needed(num_frames + 1, end + 1) <= window.num_needed(num_frames, end + 1) + 1


@given(WINDOWS, st.integers(1, 60), st.integers(0, 40))
def test_later_starts_are_those_of_the_slides_on_the_way(window: Window, num_frames: int, more: int) -> None:
    starts = [window.start(frames) for frames in range(num_frames, num_frames + more + 1)]
    assert list(window.later_starts(num_frames, num_frames + more)) == list(dict.fromkeys(starts))[1:]


def test_a_stride_longer_than_the_window_is_refused() -> None:
    assert window_of({}) is None
    assert window_of({"context_window": 1}) == (1, 1)
    assert window_of({"context_window": 7}) == (7, 3)
    with pytest.raises(InvalidArgument, match="'window_stride' is 4, expected at most context_window = 3"):
        window_of({"context_window": 3, "window_stride": 4})


@pytest.mark.parametrize(
    ("num_frames", "horizon", "window"),
    [
        (1, 8, {"context_window": 1}),
        (1, 9, {"context_window": 2}),
        (1, 12, {"context_window": 4}),
        (1, 12, {"context_window": 4, "window_stride": 1}),
        (1, 12, {"context_window": 4, "window_stride": 4}),
        (3, 9, {"context_window": 4, "window_stride": 2}),
        (4, 9, {"context_window": 4, "window_stride": 3}),
        (5, 32, {"context_window": 7}),
    ],
)
def test_a_sliding_window_equals_the_dense_predictor_over_what_it_shows(
    driver: Any, tiny: Networks, num_frames: int, horizon: int, window: dict[str, int]
) -> None:
    scene = random_scene(num_frames, 3, horizon, SHAPE, seed=horizon)
    served = driver.run_one("rollout", scene.rollout, **window)
    want = imagine(tiny.predictor, scene, window)
    torch.testing.assert_close(torch.stack(served.emitted["latent"]), want, rtol=0, atol=1e-4)
    assert driver.num_pages_held == 0


def test_a_window_keeps_the_positions_inside_those_that_were_trained(driver: Any) -> None:
    scene = random_scene(2, 1, 20, SHAPE, seed=1)
    assert driver.run_one("rollout", scene.rollout).flags == ["beyond_trained_positions"]
    assert driver.run_one("rollout", scene.rollout, context_window=7).flags == []
    assert driver.run_one("rollout", scene.rollout, context_window=8).flags == ["beyond_trained_positions"]


def test_requests_that_slide_share_steps_with_requests_that_do_not(
    driver: Any, tiny: Networks, make_request: Any
) -> None:
    windows: list[dict[str, int]] = [
        {}, {"context_window": 3}, {"context_window": 5, "window_stride": 5}, {"context_window": 2}, {},
    ]  # fmt: skip
    scenes = [random_scene(1 + index % 2, 1 + index, 4 + index, SHAPE, seed=index) for index in range(len(windows))]
    served = driver.run(
        *(make_request("rollout", scene.rollout, window) for scene, window in zip(scenes, windows, strict=True))
    )
    for one, scene, window in zip(served, scenes, windows, strict=True):
        want = imagine(tiny.predictor, scene, window or None)
        torch.testing.assert_close(torch.stack(one.emitted["latent"]), want, rtol=0, atol=1e-5)
    assert ("predict", len(windows)) in driver.batches


@pytest.fixture(scope="module")
def with_cameras(tiny_config: VJepa2Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a model that takes extrinsics."""
    config = dataclasses.replace(tiny_config, predictor=dataclasses.replace(tiny_config.predictor, use_extrinsics=True))
    file = tmp_path_factory.mktemp("cameras") / "cameras.json"
    config.to_json(file)
    return {"config": str(file), "random_seed": 3}


def test_a_model_with_cameras_takes_one_for_each_frame_and_keeps_the_last(
    make_driver: Callable[..., Any], with_cameras: dict[str, Any]
) -> None:
    driver = make_driver(with_cameras, "")
    config = VJepa2Config.from_json(Path(with_cameras["config"]))
    predictor = random_networks(config, with_cameras["random_seed"]).predictor
    for num_frames, window in ((1, {}), (3, {}), (3, {"context_window": 4, "window_stride": 2})):
        scene = random_scene(num_frames, 2, 5, SHAPE, seed=num_frames, extrinsics=True)
        served = driver.run_one("rollout", scene.rollout, **window)
        want = imagine(predictor, scene, window or None)
        torch.testing.assert_close(torch.stack(served.emitted["latent"]), want, rtol=0, atol=1e-4)
        moved = scene.rollout | {"extrinsics": scene.rollout["extrinsics"] + 0.1}
        other = driver.run_one("rollout", moved, **window)
        assert (other.emitted["latent"][0] - served.emitted["latent"][0]).abs().max() > 1e-4
    without = {name: tensor for name, tensor in scene.rollout.items() if name != "extrinsics"}
    with pytest.raises(InvalidArgument, match="0 extrinsics for 3 frames"):
        driver.run_one("rollout", without)
    with pytest.raises(InvalidArgument, match="expected"):
        driver.run_one("rollout", scene.rollout | {"extrinsics": torch.zeros(2, 6)})


def test_a_model_without_cameras_refuses_them(driver: Any) -> None:
    scene = random_scene(1, 1, 2, SHAPE, seed=0, extrinsics=True)
    arrays = {name: tensor.numpy() for name, tensor in scene.rollout.items()}
    with pytest.raises(InvalidArgument, match="unknown tensor 'extrinsics'"):
        driver.loaded.model.check_request("rollout", arrays, {})


def test_more_frames_than_the_window_shows_are_refused(driver: Any) -> None:
    scene = random_scene(4, 1, 2, SHAPE, seed=0)
    with pytest.raises(InvalidArgument, match="4 context frames, expected at most context_window = 3"):
        driver.run_one("rollout", scene.rollout, context_window=3)
    with pytest.raises(InvalidArgument, match="expected 1 to 32"):
        driver.run_one("rollout", scene.rollout, context_window=33)
    long = random_scene(4, 1, 30, SHAPE, seed=0)
    with pytest.raises(InvalidArgument, match=r"need 33 frames, this model takes 32.*context_window below 32"):
        driver.run_one("rollout", long.rollout)
    assert len(driver.run_one("rollout", long.rollout, context_window=31).emitted["latent"]) == 30


def test_what_is_seen_of_the_past_after_a_slide_goes_through_the_predictor_once(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five frames of context in a window of five, which slides by two with the first imagined frame."""
    blocks: list[int] = []
    predictor = driver.loaded.engines["predict"]._code._predictor
    step = predictor.step

    def counting(latents: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        blocks.append(len(latents))
        return step(latents, *rest, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(predictor, "step", counting)
    scene = random_scene(5, 1, 1, SHAPE, seed=2)
    driver.run_one(
        "plan", scene.context | {"goal_latents": scene.latents[:1]}, rollout_horizon=3, num_samples=16, num_elites=4,
        num_iterations=2, context_window=5, window_stride=2,
    )  # fmt: skip
    assert blocks == [4 + 2, *[16, 2 * 16, 16] * 2]
