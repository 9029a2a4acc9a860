"""What a rollout gives: latents, the last one, or distances to goals; alone or with others in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.nn.norms import normalise_latents
from tests.world_models.dense_imagination import imagine, random_scene
from world_models.planning.cost import distance
from world_models.vjepa2.checkpoint import Networks

SHAPE = (16, 64)
GOALS = normalise_latents(torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(5)))
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.25])


@pytest.mark.parametrize("num_frames", [1, 3])
def test_thirty_steps_equal_the_dense_predictor(driver: Any, tiny: Networks, num_frames: int) -> None:
    scene = random_scene(num_frames, 2, 30, SHAPE, seed=num_frames)
    served = torch.stack(driver.run_one("rollout", scene.rollout).emitted["latent"])
    torch.testing.assert_close(served, imagine(tiny.predictor, scene), rtol=0, atol=1e-4)


def test_a_changed_action_changes_no_earlier_frame(driver: Any) -> None:
    scene = random_scene(2, 3, 8, SHAPE, seed=7)
    before = torch.stack(driver.run_one("rollout", scene.rollout).emitted["latent"])
    scene.actions[1, 4] += 0.1
    after = torch.stack(driver.run_one("rollout", scene.rollout).emitted["latent"])
    assert (before[:4] == after[:4]).all()
    assert (before[4:, 1] != after[4:, 1]).flatten(1).any(dim=1).all()
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]], rtol=0, atol=0)


def test_requests_of_mixed_horizons_and_pasts_equal_those_alone(driver: Any, make_request: Any) -> None:
    scenes = [random_scene(1 + index % 3, 1 + index % 4, 1 + 2 * index, SHAPE, seed=index) for index in range(8)]
    alone = [driver.run_one("rollout", scene.rollout) for scene in scenes]
    together = driver.run(*(make_request("rollout", scene.rollout) for scene in scenes))
    assert ("predict", 8) in driver.batches
    for one, other in zip(alone, together, strict=True):
        for name in ("latent", "pose"):
            torch.testing.assert_close(one.emitted[name], other.emitted[name], rtol=0, atol=1e-5)


def test_only_what_is_asked_for_is_given(driver: Any) -> None:
    scene = random_scene(2, 3, 4, SHAPE, seed=1)
    latents = driver.run_one("rollout", scene.rollout).emitted
    assert [len(distances) for distances in latents["goal_distance"]] == [0] * 4
    last = driver.run_one("rollout", scene.rollout, output="last_latent").emitted
    assert [len(latent) for latent in last["latent"]] == [0, 0, 0, 3]
    torch.testing.assert_close(last["latent"][3], latents["latent"][3])
    given = scene.rollout | {"goal_latents": GOALS[:1]}
    distances = driver.run_one("rollout", given, output="goal_distance").emitted
    assert [len(latent) for latent in distances["latent"]] == [0] * 4
    for step, latent in enumerate(latents["latent"]):
        torch.testing.assert_close(distances["goal_distance"][step], (latent - GOALS[0]).abs().mean(dim=(1, 2)))
    for emitted in (last, distances):
        torch.testing.assert_close(emitted["pose"], latents["pose"])


@pytest.mark.parametrize("kind", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("use", ["per_step", "nearest"])
def test_goals_are_used_as_the_request_says(driver: Any, use: str, kind: str) -> None:
    scene = random_scene(1, 2, 4, SHAPE, seed=2)
    latents = driver.run_one("rollout", scene.rollout).emitted["latent"]
    for weights in (None, WEIGHTS):
        given = scene.rollout | {"goal_latents": GOALS} | ({} if weights is None else {"goal_weights": weights})
        got = driver.run_one("rollout", given, output="goal_distance", goal_use=use, cost=kind).emitted["goal_distance"]
        for step, latent in enumerate(latents):
            each = torch.stack([distance(latent, goal, kind) for goal in GOALS])
            each *= torch.ones(4, 1) if weights is None else WEIGHTS[:, None]
            want = each[step] if use == "per_step" else each.amin(dim=0)
            torch.testing.assert_close(got[step], want)


def test_a_goal_in_the_request_takes_the_place_of_the_kept_one_as_a_whole(driver: Any) -> None:
    scene = random_scene(1, 2, 4, SHAPE, seed=3)
    driver.run_in("s", "set_goal", {"goal_latents": GOALS, "goal_weights": WEIGHTS}, goal_use="per_step")

    def distances(**given: torch.Tensor) -> list[torch.Tensor]:
        return list(
            driver.run_in("s", "rollout", scene.rollout | given, output="goal_distance").emitted["goal_distance"]
        )

    same = scene.rollout | {"goal_latents": GOALS, "goal_weights": WEIGHTS}
    want = driver.run_one("rollout", same, output="goal_distance", goal_use="per_step").emitted["goal_distance"]
    torch.testing.assert_close(distances(), want)
    alone = driver.run_one("rollout", scene.rollout | {"goal_latents": GOALS[2:3]}, output="goal_distance").emitted
    torch.testing.assert_close(distances(goal_latents=GOALS[2:3]), alone["goal_distance"])
    driver.run_in("s", "set_goal", {"goal_latents": GOALS[2:3]})
    torch.testing.assert_close(distances(), alone["goal_distance"])
    assert driver.run_in("s", "rollout", scene.rollout).emitted["goal_distance"][0].shape == (0,)


def test_goals_that_do_not_fit_are_refused(driver: Any) -> None:
    scene = random_scene(1, 1, 4, SHAPE, seed=4)
    several, one = {"goal_latents": GOALS}, {"goal_latents": GOALS[:1]}
    wanted = {"output": "goal_distance"}
    cases: list[tuple[dict[str, torch.Tensor], dict[str, Any], str]] = [
        (one, {}, "a goal is given, but option 'output' is 'latents'"),
        ({}, {"cost": "l2"}, "'cost' is 'l2', but option 'output' is 'latents'"),
        (several, wanted, "there are 4 goals and option 'goal_use' is 'last', expected one goal"),
        ({"goal_latents": GOALS[:3]}, {**wanted, "goal_use": "per_step"}, "3 goals .* rollout_horizon is 4"),
        (one | {"goal_weights": WEIGHTS[:1]}, wanted, "goal_weights are given for one goal"),
        (several | {"goal_weights": WEIGHTS[:3]}, {**wanted, "goal_use": "nearest"}, r"expected \[G=4\]"),
        (several | {"goal_weights": -WEIGHTS}, {**wanted, "goal_use": "nearest"}, "expected none below 0"),
        (several | {"goal_weights": WEIGHTS * 0}, {**wanted, "goal_use": "per_step"}, "expected none below 0"),
        (
            several | {"goal_weights": torch.tensor([1.0, 0, 1, 1])}, {**wanted, "goal_use": "nearest"},
            "all above 0 with goal_use 'nearest'",
        ),
        ({"goal_weights": WEIGHTS}, wanted, "goal_weights are given without goals"),
        ({}, {"goal_use": "nearest"}, "'goal_use' is 'nearest', but no goal is given with it"),
        ({}, {"output": "goal"}, "expected one of latents, last_latent, goal_distance"),
    ]  # fmt: skip
    for goal, options, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            driver.run_one("rollout", scene.rollout | goal, **options)
    with pytest.raises(FailedPrecondition, match="there is no goal yet"):
        driver.run_one("rollout", scene.rollout, **wanted)
    assert driver.num_pages_held == 0


def test_what_needs_more_pages_than_there_are_is_refused_before_a_step_and_what_needs_all_runs(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = driver.loaded.pools["world"].allocator
    allocator.allocate(allocator.num_free - 22)
    monkeypatch.setattr(allocator, "num_pages", 22)
    fits, too_large = (random_scene(3, 4, horizon, SHAPE, seed=8) for horizon in (6, 7))
    assert len(driver.run_one("rollout", fits.rollout).emitted["latent"]) == 6
    driver.batches.clear()
    with pytest.raises(InvalidArgument, match=r"4 sequences of 7 steps keep 26 frames in the cache, .* pages for 22"):
        driver.run_one("rollout", too_large.rollout)
    assert "predict" not in [node for node, _ in driver.batches]
    assert allocator.num_free == 22


@pytest.mark.parametrize("use", ["last", "per_step", "nearest"])
def test_plans_measure_what_rollouts_of_their_candidates_measure(driver: Any, use: str) -> None:
    goals = {"goal_latents": GOALS[:1] if use == "last" else GOALS}
    if use != "last":
        goals["goal_weights"] = WEIGHTS
    scene = random_scene(2, 1, 4, SHAPE, seed=8)
    options = {"rollout_horizon": 4, "goal_use": use, "cost": "l2"}
    driver.run_one("plan", scene.context | goals, num_samples=12, num_elites=3, num_iterations=1, **options)
    actions = driver.seen["sample"][0][1]["actions"]
    costs = driver.seen["score"][0][1]["costs"]
    rolled = driver.run_one(
        "rollout", scene.context | goals | {"actions": actions}, output="goal_distance", goal_use=use, cost="l2"
    )
    distances = torch.stack(rolled.emitted["goal_distance"])
    torch.testing.assert_close(costs, distances.sum(dim=0) if use == "per_step" else distances[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("use", ["last", "per_step"])
@pytest.mark.parametrize("branching", [(3, 1, 2, 2), (1, 12, 1, 1), (2, 2, 3, 1), (12, 1, 1, 1)])
@pytest.mark.parametrize("window", [32, 3])
def test_a_tree_costs_what_its_candidates_cost_one_by_one(
    driver: Any, branching: tuple[int, ...], use: str, window: int
) -> None:
    goals = {"goal_latents": GOALS[:1] if use == "last" else GOALS}
    scene = random_scene(2, 1, 4, SHAPE, seed=9)
    options = {"rollout_horizon": 4, "goal_use": use, "context_window": window}
    driver.run_one(
        "plan", scene.context | goals, num_samples=12, num_elites=3, num_iterations=2,
        tree_branching=tuple(map(float, branching)), **options,
    )  # fmt: skip
    rows = [len(outputs["pose"]) for _, outputs in driver.seen["predict"][:4]]
    assert rows == [int(torch.tensor(branching[: step + 1]).prod()) for step in range(4)]
    for (_, sampled), (_, scored) in zip(driver.seen["sample"], driver.seen["score"], strict=True):
        given = scene.context | goals | {"actions": sampled["actions"]}
        rolled = driver.run_one("rollout", given, output="goal_distance", goal_use=use, context_window=window)
        distances = torch.stack(rolled.emitted["goal_distance"])
        want = distances.sum(dim=0) if use == "per_step" else distances[-1]
        torch.testing.assert_close(scored["costs"], want, rtol=0, atol=1e-5)
    assert driver.num_pages_held == 0


def test_trees_and_flat_searches_share_steps(driver: Any, make_request: Any) -> None:
    scene = random_scene(2, 1, 3, SHAPE, seed=10)
    base = {"rollout_horizon": 3, "num_samples": 12, "num_elites": 4, "num_iterations": 2}
    options: list[dict[str, Any]] = [
        base, base | {"tree_branching": (2.0, 3.0, 2.0)}, base | {"context_window": 2},
        base | {"tree_branching": (6.0, 1.0, 2.0), "context_window": 3, "seed": 4},
    ]  # fmt: skip
    given = scene.context | {"goal_latents": GOALS[:1]}
    alone = [driver.run_one("plan", given, **each) for each in options]
    together = driver.run(*(make_request("plan", given, each) for each in options))
    assert ("predict", 4) in driver.batches
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.emitted["plan_actions"], other.emitted["plan_actions"], rtol=0, atol=1e-4)


def most_pages(driver: Any, given: Mapping[str, torch.Tensor], **options: Any) -> int:
    """That a plan holds at once, between its steps."""
    allocator = next(iter(driver.loaded.pools.values())).allocator
    held = []
    engine = driver.loaded.engines["predict"]
    run = engine.run

    def counting(calls: Any) -> Any:
        results = run(calls)
        held.append(allocator.num_held)
        return results

    engine.run = counting
    driver.run_one("plan", given, num_elites=4, num_iterations=3, **options)
    engine.run = run
    return max(held)


def test_a_tree_takes_fewer_pages(driver: Any) -> None:
    given = random_scene(1, 1, 3, SHAPE, seed=11).context | {"goal_latents": GOALS[:1]}
    options = {"rollout_horizon": 3, "num_samples": 32}
    assert most_pages(driver, given, **options) == 64
    assert most_pages(driver, given, tree_branching=(2.0, 4.0, 4.0), **options) == 10


def test_what_a_tree_has_left_behind_is_free_when_its_window_slides(driver: Any) -> None:
    """Rows of later steps are made anew then, so that those which they came from are of no use."""
    given = random_scene(1, 1, 6, SHAPE, seed=11).context | {"goal_latents": GOALS[:1]}
    options = {"rollout_horizon": 6, "num_samples": 32, "context_window": 3, "window_stride": 1}
    tree = {"tree_branching": (8.0, 1.0, 1.0, 2.0, 1.0, 2.0)}
    assert most_pages(driver, given, **options) == 32 * 3
    assert most_pages(driver, given, **options, **tree) == 32 * 3


class StepFailed(Exception):
    pass


def test_steps_that_fail_and_are_run_again_change_nothing(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that appends is asked for its sequences twice, fails half-way once, and is run again."""
    scene = random_scene(4, 3, 5, SHAPE, seed=12)
    window = {"context_window": 4, "window_stride": 2}
    search = {"rollout_horizon": 3, "num_samples": 12, "num_elites": 4, "num_iterations": 2, **window}
    goal = {"goal_latents": GOALS[:1]}

    def everything(session: str) -> list[torch.Tensor]:
        for frame in range(4):
            driver.run_in(session, "observe", scene.observation(frame), **window)
        rolled = driver.run_in(session, "rollout", {"actions": scene.actions}, **window)
        planned = [
            driver.run_in(session, "plan", given | goal, **search, **options)
            for given in ({}, scene.context)
            for options in ({}, {"tree_branching": (3.0, 2.0, 2.0)})
        ]
        return [*rolled.emitted["latent"], *(plan for one in planned for plan in one.emitted["plan_actions"])]

    want = everything("smooth")
    num_failures = []
    for node in ("remember", "predict"):
        engine = driver.loaded.engines[node]
        predictor, run = engine._code._predictor, engine.run

        def stubborn(calls: Any, engine: Any = engine, predictor: Any = predictor, run: Any = run) -> Any:
            for call in calls:
                engine._code.attention_steps(call)
            step = predictor.step

            def failing(*arguments: Any, **options: Any) -> Any:
                step(*arguments, **options)
                raise StepFailed

            predictor.step = failing
            try:
                return run(calls)  # nothing went through the predictor
            except StepFailed:
                num_failures.append(1)
            finally:
                predictor.step = step
            return run(calls)

        monkeypatch.setattr(engine, "run", stubborn)
    for got, expected in zip(everything("stubborn"), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert len(num_failures) > 30
    for session in ("smooth", "stubborn"):
        driver.close(session)
    assert driver.num_pages_held == 0
