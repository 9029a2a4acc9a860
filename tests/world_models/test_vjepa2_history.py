"""A session that observes frame by frame imagines as one that is given all frames at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable
from tests.world_models.dense_imagination import Scene, first_seen, imagine, random_scene
from world_models.vjepa2.checkpoint import Networks
from world_models.vjepa2.config import VJepa2Config

SHAPE = (16, 64)
GOAL = {"goal_latents": random_scene(1, 1, 1, SHAPE, seed=99).latents}
SEARCH = {"rollout_horizon": 2, "num_samples": 16, "num_elites": 4, "num_iterations": 2}


def observe(driver: Any, scene: Scene, session: str = "s", frames: range | None = None, **window: int) -> list[int]:
    """How many frames the window has after each observation."""
    return [
        int(driver.run_in(session, "observe", scene.observation(frame), **window).emitted["num_frames"][0])
        for frame in (range(len(scene.latents)) if frames is None else frames)
    ]


def compare(driver: Any, scene: Scene, session: str = "s", **window: int) -> None:
    """Rollouts and plans from the history equal those from the same frames in the request."""
    for task, given, options in (
        ("rollout", {"actions": scene.actions}, {}),
        ("plan", GOAL, SEARCH),
    ):
        remembered = driver.run_in(session, task, given, **options, **window)
        told = driver.run_one(task, scene.context | given, **options, **window)
        for name in told.emitted:
            torch.testing.assert_close(remembered.emitted[name], told.emitted[name], rtol=0, atol=1e-5)
        assert remembered.flags == told.flags


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_a_history_is_a_context(driver: Any, tiny: Networks, num_frames: int) -> None:
    scene = random_scene(num_frames, 3, 4, SHAPE, seed=num_frames)
    assert observe(driver, scene) == list(range(1, num_frames + 1))
    assert driver.num_pages_held == num_frames - 1
    compare(driver, scene)
    assert driver.num_pages_held == num_frames - 1
    rolled = driver.run_in("s", "rollout", {"actions": scene.actions})
    torch.testing.assert_close(torch.stack(rolled.emitted["latent"]), imagine(tiny.predictor, scene), rtol=0, atol=1e-4)
    driver.close("s")
    assert driver.num_pages_held == 0


@pytest.mark.parametrize(
    "window",
    [
        {"context_window": 1}, {"context_window": 2}, {"context_window": 4}, {"context_window": 4, "window_stride": 1},
        {"context_window": 4, "window_stride": 4},
    ],
)  # fmt: skip
def test_a_history_slides_as_its_window_says(driver: Any, tiny: Networks, window: dict[str, int]) -> None:
    """At every length it equals the frames that are left, alone; imagined frames slide it further."""
    scene = random_scene(9, 2, 5, SHAPE, seed=20)
    for num_frames in range(1, 10):
        start = first_seen(num_frames, window)
        (held,) = observe(driver, scene, frames=range(num_frames - 1, num_frames), **window)
        assert held == num_frames - start
        assert driver.num_pages_held == held - 1
        seen = Scene(
            scene.latents[start:num_frames], scene.past_actions[start : num_frames - 1],
            scene.states[start:num_frames], scene.actions,
        )  # fmt: skip
        rolled = driver.run_in("s", "rollout", {"actions": scene.actions}, **window)
        torch.testing.assert_close(
            torch.stack(rolled.emitted["latent"]), imagine(tiny.predictor, seen, window), rtol=0, atol=1e-4
        )
        if num_frames in (4, 5, 9):
            compare(driver, seen, **window)


def test_the_cache_is_made_anew_once_when_the_window_slides(driver: Any) -> None:
    scene = random_scene(9, 1, 1, SHAPE, seed=21)
    driver.seen.clear()
    observe(driver, scene, context_window=4, window_stride=2)
    cached = [int(inputs["num_cached"]) for inputs, _ in driver.seen["remember"]]
    past = [len(inputs["past_actions"]) for inputs, _ in driver.seen["remember"]]
    assert list(zip(cached, past, strict=True)) == [
        (0, 0), (0, 1), (1, 2), (2, 3), (0, 2), (2, 3), (0, 2), (2, 3), (0, 2),
    ]  # fmt: skip


def test_commands_come_in_any_order(driver: Any) -> None:
    """Plans, rollouts, own contexts and failures between observations leave the history as it is."""
    window = {"context_window": 5, "window_stride": 2}
    scene, other = random_scene(8, 2, 3, SHAPE, seed=22), random_scene(3, 2, 3, SHAPE, seed=23)
    reference = [random_scene(8, 2, 3, SHAPE, seed=22)]
    observe(driver, reference[0], "quiet", **window)
    for frame in range(8):
        observe(driver, scene, frames=range(frame, frame + 1), **window)
        driver.run_in("s", "plan", GOAL, **SEARCH, **window)
        driver.run_in("s", "rollout", other.rollout, **window)
        driver.run_in("s", "plan", other.context | GOAL, **SEARCH, context_window=3)
        with pytest.raises(InvalidArgument):
            driver.run_in("s", "observe", {k: v for k, v in scene.observation(1).items() if k != "executed_action"})
    for task, given, options in (("rollout", {"actions": scene.actions}, {}), ("plan", GOAL, SEARCH)):
        one, quiet = (driver.run_in(name, task, given, **options, **window) for name in ("s", "quiet"))
        for name in quiet.emitted:
            torch.testing.assert_close(one.emitted[name], quiet.emitted[name], rtol=0, atol=1e-6)
    driver.close("s")
    driver.close("quiet")
    assert driver.num_pages_held == 0


def test_a_plan_may_see_less_than_the_session_keeps(driver: Any) -> None:
    scene = random_scene(5, 2, 3, SHAPE, seed=24)
    observe(driver, scene)
    narrow = {"context_window": 3, "window_stride": 2}
    told = driver.run_one("rollout", scene.from_frame(2).rollout, **narrow)
    asked = driver.run_in("s", "rollout", {"actions": scene.actions}, **narrow)
    torch.testing.assert_close(asked.emitted["latent"], told.emitted["latent"], rtol=0, atol=1e-5)
    compare(driver, scene)


def test_a_window_that_gets_narrower_keeps_the_newest_frames(driver: Any) -> None:
    scene = random_scene(6, 2, 3, SHAPE, seed=25)
    assert observe(driver, scene, frames=range(5)) == [1, 2, 3, 4, 5]
    narrow = {"context_window": 3, "window_stride": 2}
    assert observe(driver, scene, frames=range(5, 6), **narrow) == [2]
    compare(driver, scene.from_frame(4), **narrow)


def test_sessions_share_steps_and_stay_apart(driver: Any, make_request: Any) -> None:
    windows: list[dict[str, int]] = [{}, {"context_window": 3}, {"context_window": 2}, {"context_window": 4}]
    scenes = [random_scene(6, 1 + index, 3 + index, SHAPE, seed=30 + index) for index in range(4)]
    for frame in range(6):
        driver.run(
            *(
                make_request("observe", scene.observation(frame), window, session=f"s{index}")
                for index, (scene, window) in enumerate(zip(scenes, windows, strict=True))
            )
        )
    assert ("remember", 4) in driver.batches
    stranger = random_scene(2, 2, 6, SHAPE, seed=40)
    requests = [
        make_request("rollout", {"actions": scene.actions}, window, session=f"s{index}")
        for index, (scene, window) in enumerate(zip(scenes, windows, strict=True))
    ]
    together = driver.run(*requests, make_request("rollout", stranger.rollout))
    assert ("predict", 5) in driver.batches
    alone = [driver.run(request)[0] for request in requests] + [driver.run_one("rollout", stranger.rollout)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.emitted["latent"], other.emitted["latent"], rtol=0, atol=1e-5)


def test_what_does_not_fit_a_history_is_refused(driver: Any) -> None:
    scene = random_scene(3, 1, 2, SHAPE, seed=26)
    actions = {"actions": scene.actions}
    for task, given in (("rollout", actions), ("plan", GOAL)):
        with pytest.raises(FailedPrecondition, match="give frames or context_latents with the request, or `observe`"):
            driver.run_in("s", task, given)
    with pytest.raises(InvalidArgument, match="executed_action is given with the first observation"):
        driver.run_in("s", "observe", scene.observation(0) | {"executed_action": scene.past_actions[0]})
    observe(driver, scene)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("observe", {k: v for k, v in scene.observation(2).items() if k != "executed_action"}, "'executed_action' is missing"),
        ("observe", scene.observation(2) | {"context_latents": scene.latents}, r"expected \[1, 16, 64\]"),
        ("observe", {"state": scene.states[0]}, "expected one of the tensors frames, context_latents, none is given"),
        ("rollout", actions | {"state": scene.states[0]}, "'state' is given without frames"),
        ("plan", GOAL | {"context_latents": scene.latents[:1]}, "tensor 'state' is missing"),
    ]  # fmt: skip
    for task, given, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            driver.run_in("s", task, given)
    compare(driver, scene)


def test_a_history_whose_cache_is_lost_says_so(driver: Any) -> None:
    scene = random_scene(3, 1, 2, SHAPE, seed=27)
    observe(driver, scene)
    driver.loaded.memory.release_scope("s")
    with pytest.raises(Unavailable, match="start the session anew"):
        driver.run_in("s", "rollout", {"actions": scene.actions})


def test_a_history_of_a_model_with_cameras_keeps_them(
    make_driver: Callable[..., Any], tiny_config: VJepa2Config, tmp_path: Any
) -> None:
    config = dataclasses.replace(tiny_config, predictor=dataclasses.replace(tiny_config.predictor, use_extrinsics=True))
    config.to_json(tmp_path / "cameras.json")
    driver = make_driver({"config": str(tmp_path / "cameras.json"), "random_seed": 3}, "")
    scene = random_scene(6, 2, 3, SHAPE, seed=28, extrinsics=True)
    observe(driver, scene, context_window=4, window_stride=2)
    compare(driver, scene.from_frame(2), context_window=4, window_stride=2)
    with pytest.raises(InvalidArgument, match="'extrinsics' is missing"):
        driver.run_in("s", "observe", {k: v for k, v in scene.observation(2).items() if k != "extrinsics"})


def test_frames_are_observed_as_their_latents_are(driver: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    frames = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8, generator=generator)
    scene = random_scene(2, 2, 3, SHAPE, seed=29)
    (scene.latents,) = driver.run_one("encode", {"frames": frames}).emitted["latents"]
    for frame in range(2):
        given = {k: v for k, v in scene.observation(frame).items() if k != "context_latents"}
        driver.run_in("s", "observe", given | {"frames": frames[frame : frame + 1]})
    compare(driver, scene)
