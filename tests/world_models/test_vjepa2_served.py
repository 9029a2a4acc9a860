"""The walks of V-JEPA 2-AC through programs, engines and paged memory, against the published implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mstar_rt.errors import CheckpointError, ConfigError, FailedPrecondition, InvalidArgument
from mstar_rt.nn.norms import normalise_latents

Tensors = dict[str, torch.Tensor]


def context_of(golden: Tensors, row: int, num_frames: int = 2) -> Tensors:
    return {
        "context_latents": golden["frame_latents_normed"][row, :num_frames],
        "context_states": golden["states"][row, :num_frames],
        "state": golden["states"][row, num_frames - 1],
        **({"context_actions": golden["actions"][row, : num_frames - 1]} if num_frames > 1 else {}),
    }


def rollout_of(golden: Tensors, row: int) -> Tensors:
    given = {"actions": golden["actions"][row : row + 1, 1:], "states": golden["states"][row : row + 1, 1:]}
    return context_of(golden, row) | given


def plan_options(settings: dict[str, Any], name: str) -> dict[str, Any]:
    chosen = settings[name]
    options = {
        "rollout_horizon": chosen["rollout"],
        "num_samples": chosen["samples"],
        "num_elites": chosen["topk"],
        "num_iterations": chosen["cem_steps"],
        "momentum_mean": chosen["momentum_mean"],
        "momentum_std": chosen["momentum_std"],
        "max_displacement": chosen["maxnorm"],
        "pinned_dims": tuple(float(dimension) for dimension in chosen["axis"]),
        "pinned_values": tuple(chosen["axis"].values()),
        "seed": settings["seed"],
    }
    if "close_gripper" in chosen:
        options["close_gripper_step"] = chosen["close_gripper"]
    return options


def plan_inputs(tensors: Tensors) -> Tensors:
    return {
        "context_latents": tensors["context_latents"][0],
        "goal_latents": tensors["goal_latents"][0],
        "state": tensors["pose"][0, 0],
    }


def test_rollouts_of_two_requests_batch_and_equal_the_published_ones(
    driver: Any, golden: Tensors, make_request: Any
) -> None:
    served = driver.run(*(make_request("rollout", rollout_of(golden, row)) for row in range(2)))
    got = torch.stack([torch.stack(one.emitted["latent"])[:, 0] for one in served])
    torch.testing.assert_close(got, golden["rollout"], rtol=0, atol=1e-5)
    assert ("predict", 2) in driver.batches
    assert driver.num_pages_held == 0


def test_requests_at_different_steps_share_a_batch(driver: Any, golden: Tensors, make_request: Any) -> None:
    """The second request has no past, so it is a step ahead of the first in every batch."""
    late = rollout_of(golden, 0)
    early = context_of(golden, 1, 1) | {"actions": golden["actions"][1:2], "states": golden["states"][1:2]}
    alone = [driver.run_one("rollout", tensors) for tensors in (late, early)]
    together = driver.run(make_request("rollout", late), make_request("rollout", early))
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(
            torch.stack(one.emitted["latent"]), torch.stack(other.emitted["latent"]), rtol=0, atol=1e-5
        )


def test_one_request_rolls_out_many_sequences_from_one_past(driver: Any, golden: Tensors) -> None:
    actions = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1)) * 0.05
    together = driver.run_one("rollout", context_of(golden, 0) | {"actions": actions})
    for row in range(5):
        alone = driver.run_one("rollout", context_of(golden, 0) | {"actions": actions[row : row + 1]})
        for step in range(3):
            torch.testing.assert_close(
                together.emitted["latent"][step][row], alone.emitted["latent"][step][0], rtol=0, atol=1e-5
            )
            torch.testing.assert_close(together.emitted["pose"][step][row], alone.emitted["pose"][step][0])


@pytest.mark.parametrize("name", ["h1", "h3", "h2_pinned"])
def test_plans_equal_the_published_planner(driver: Any, golden_cem: Any, name: str) -> None:
    tensors, settings = golden_cem
    served = driver.run_one("plan", plan_inputs(tensors), **plan_options(settings, name))
    assert len(served.emitted["plan_actions"]) == settings[name]["cem_steps"]
    torch.testing.assert_close(served.emitted["plan_actions"][-1], tensors[f"plan_{name}"], rtol=0, atol=1e-4)
    assert driver.num_pages_held == 0


def test_plans_batch_across_requests_without_changing(driver: Any, golden_cem: Any, make_request: Any) -> None:
    tensors, settings = golden_cem
    names = ["h1", "h3", "h2_pinned"]
    served = driver.run(*(make_request("plan", plan_inputs(tensors), plan_options(settings, name)) for name in names))
    for one, name in zip(served, names, strict=True):
        torch.testing.assert_close(one.emitted["plan_actions"][-1], tensors[f"plan_{name}"], rtol=0, atol=1e-4)
    assert ("predict", 3) in driver.batches


def test_plan_from_frames_equals_plan_from_their_latents(driver: Any, golden_cem: Any) -> None:
    tensors, settings = golden_cem
    frames = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    state = {"state": tensors["pose"][0, 0]}
    (latents,) = driver.run_one("encode", {"frames": frames}).emitted["latents"]
    assert latents.shape == (2, 16, 64)
    options = plan_options(settings, "h1")
    from_frames = driver.run_one("plan", {"frames": frames[:1], "goal_frames": frames[1:], **state}, **options)
    encoded = {"context_latents": latents[:1], "goal_latents": latents[1:]}
    from_latents = driver.run_one("plan", encoded | state, **options)
    torch.testing.assert_close(
        from_frames.emitted["plan_actions"], from_latents.emitted["plan_actions"], rtol=0, atol=1e-5
    )


def test_a_goal_that_the_session_keeps_is_the_goal_of_its_plans(driver: Any, golden_cem: Any) -> None:
    tensors, settings = golden_cem
    inputs = plan_inputs(tensors)
    kept = driver.run_one("set_goal", {"goal_latents": inputs.pop("goal_latents")}).persisted
    served = driver.run_one("plan", inputs | kept, **plan_options(settings, "h1"))
    torch.testing.assert_close(served.emitted["plan_actions"][-1], tensors["plan_h1"], rtol=0, atol=1e-4)
    with pytest.raises(FailedPrecondition, match="set_goal first"):
        driver.run_one("plan", inputs, **plan_options(settings, "h1"))


def test_a_past_is_shared_by_all_candidates(driver: Any, golden: Tensors, golden_cem: Any, tiny: Any) -> None:
    """With a past of one frame, each candidate's first step equals a dense forward over two frames."""
    tensors, settings = golden_cem
    given = context_of(golden, 0) | {"goal_latents": tensors["goal_latents"][0]}
    served = driver.run_one("plan", given, **plan_options(settings, "h1"))
    action = served.emitted["plan_actions"][-1]
    step = driver.run_one("rollout", context_of(golden, 0) | {"actions": action[None]}).emitted["latent"][0][0]
    actions = torch.cat([golden["actions"][0, :1], action])[None]
    with torch.no_grad():
        dense = tiny.predictor(golden["frame_latents_normed"][:1], actions, golden["states"][:1, :2])
    torch.testing.assert_close(step, normalise_latents(dense)[0, -1], rtol=0, atol=1e-5)
    assert served.emitted["plan_cost"][-1][0] <= served.emitted["plan_cost"][-1][1]


def test_poses_of_the_past_are_traced_back_when_they_are_not_given(driver: Any, golden: Tensors) -> None:
    given = context_of(golden, 0)
    actions = {"actions": golden["actions"][:1, 1:3]}
    state = {"state": torch.tensor([0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 0.5])}
    before = state["state"] - torch.cat([given["context_actions"][0, :3], torch.zeros(4)])
    no_turn = {"context_actions": given["context_actions"] * torch.tensor([1.0, 1, 1, 0, 0, 0, 0])}
    traced = driver.run_one("rollout", {"context_latents": given["context_latents"], **no_turn, **state, **actions})
    told = driver.run_one(
        "rollout",
        {
            "context_latents": given["context_latents"],
            "context_states": torch.stack([before, state["state"]]),
            **no_turn,
            **state,
            **actions,
        },
    )
    torch.testing.assert_close(traced.emitted["latent"], told.emitted["latent"], rtol=0, atol=1e-5)


def test_a_plan_stops_when_the_next_iteration_would_end_too_late(
    driver: Any, golden_cem: Any, make_request: Any
) -> None:
    tensors, settings = golden_cem
    driver.step_ns = 10
    options = plan_options(settings, "h1") | {"num_iterations": 50}
    (served,) = driver.run(make_request("plan", plan_inputs(tensors), options, deadline_ns=150))
    assert served.flags == ["deadline"]
    assert 1 <= len(served.emitted["plan_actions"]) < 5
    whole = driver.run_one("plan", plan_inputs(tensors), **options | {"num_iterations": 2})
    torch.testing.assert_close(served.emitted["plan_actions"][1], whole.emitted["plan_actions"][1], rtol=0, atol=1e-5)


def test_a_plan_stops_when_the_search_has_converged(driver: Any, golden_cem: Any) -> None:
    tensors, settings = golden_cem
    options = plan_options(settings, "h1") | {"num_iterations": 60, "convergence_tolerance": 0.01}
    served = driver.run_one("plan", plan_inputs(tensors), **options)
    assert served.flags == ["converged"]
    assert len(served.emitted["plan_actions"]) < 60


def test_a_warm_start_continues_the_last_plan(driver: Any, golden_cem: Any) -> None:
    tensors, settings = golden_cem
    inputs, options = plan_inputs(tensors), plan_options(settings, "h3")
    first = driver.run_one("plan", inputs, **options)
    kept = first.persisted["warm_mean"]
    torch.testing.assert_close(kept[:-1, :3], first.emitted["plan_actions"][-1][1:, :3])
    assert not kept[-1].any()
    cold = driver.run_one("plan", inputs | {"warm_mean": kept}, **options)
    warm = driver.run_one("plan", inputs | {"warm_mean": kept}, **options, warm_start=True)
    nothing_kept = driver.run_one("plan", inputs, **options, warm_start=True)
    mean = torch.cat([kept[:, :3], torch.zeros(3, 3), kept[:, 3:]], dim=1)
    told = driver.run_one("plan", inputs | {"initial_mean": mean}, **options)
    torch.testing.assert_close(cold.emitted["plan_actions"], first.emitted["plan_actions"])
    torch.testing.assert_close(nothing_kept.emitted["plan_actions"], first.emitted["plan_actions"])
    torch.testing.assert_close(warm.emitted["plan_actions"], told.emitted["plan_actions"])
    assert (warm.emitted["plan_actions"][-1] != cold.emitted["plan_actions"][-1]).any()


def test_positions_that_training_never_saw_are_flagged(driver: Any, golden: Tensors) -> None:
    inputs = context_of(golden, 0, 1)
    inside = driver.run_one("rollout", inputs | {"actions": torch.zeros(1, 7, 7)})
    beyond = driver.run_one("rollout", inputs | {"actions": torch.zeros(1, 8, 7)})
    assert inside.flags == []
    assert beyond.flags == ["beyond_trained_positions"]


def test_bfloat16_stays_near_float32(
    make_driver: Any, driver: Any, tiny_options: Any, tiny_checkpoint: Path, golden: Tensors
) -> None:
    served = make_driver(tiny_options, tiny_checkpoint, "bfloat16").run_one("rollout", rollout_of(golden, 0))
    got = torch.stack(served.emitted["latent"])[:, 0]
    assert got.dtype == torch.float32
    assert 0 < (got - golden["rollout"][0]).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_elites": 65}, "at most num_samples"),
        ({"pinned_dims": (1.0,)}, "1 pinned_dims and 0 pinned_values"),
        ({"pinned_dims": (1.5,), "pinned_values": (0.0,)}, "whole numbers"),
        ({"rollout_horizon": 33}, "expected 1 to 32"),
        ({"num_sample": 3}, "num_samples"),
    ],
)
def test_bad_options_are_refused(driver: Any, golden_cem: Any, change: dict[str, Any], message: str) -> None:
    tensors, settings = golden_cem
    with pytest.raises(InvalidArgument, match=message):
        driver.run_one("plan", plan_inputs(tensors), **plan_options(settings, "h1") | change)


def test_bad_tensors_are_refused(driver: Any, golden: Tensors) -> None:
    good = rollout_of(golden, 0)
    without_latents = {name: tensor for name, tensor in good.items() if name != "context_latents"}
    cases = [
        (good | {"actions": good["actions"][:, :, :6]}, "actions"),
        (good | {"actions": good["actions"].double()}, "float32"),
        (good | {"actions": good["actions"] * float("nan")}, "finite"),
        (good | {"state": good["state"] + 1}, "differs from state"),
        (good | {"context_actions": torch.zeros(3, 7)}, "context_actions"),
        ({k: v for k, v in good.items() if k != "context_actions"}, "0 context_actions for 2 context frames"),
        (context_of(golden, 0) | {"actions": torch.zeros(1, 32, 7)}, "33 frames"),
        (context_of(golden, 0) | {"actions": torch.zeros(1, 33, 7)}, "the limit of this model is 32"),
        (without_latents, "'context_actions' has a size T-1, but no tensor is given that says what T is"),
        ({k: v for k, v in without_latents.items() if k != "context_actions"}, "'state' is given without frames"),
        (good | {"frames": torch.zeros(2, 64, 64, 3, dtype=torch.uint8)}, "frames.*context_latents"),
        (without_latents | {"frames": torch.zeros(2, 64, 48, 3, dtype=torch.uint8)}, "expected .*64, 64, 3"),
        (without_latents | {"frames": torch.zeros(2, 64, 64, 3).double()}, "dtype float64, expected uint8 or float32"),
        (without_latents | {"frames": torch.full((2, 64, 64, 3), 200.0)}, "values up to 200, expected normalised ones"),
        (without_latents | {"frames": torch.full((2, 64, 64, 3), float("nan"))}, "finite"),
    ]
    for tensors, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            driver.run_one("rollout", tensors)
    assert driver.num_pages_held == 0


def test_bad_declarations_are_refused(make_driver: Any, tiny_options: Any, tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'preset'"):
        make_driver({"presets": "tabletop"}, tiny_checkpoint)
    with pytest.raises(ConfigError, match="both options"):
        make_driver({"preset": "tabletop", **tiny_options}, tiny_checkpoint)
    with pytest.raises(ConfigError, match="both a checkpoint"):
        make_driver({"random_seed": 1}, tiny_checkpoint)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        make_driver(tiny_options, "")
    with pytest.raises(CheckpointError, match=r"shape \[64, 7\], expected \[128, 7\]|lacks"):
        make_driver({"preset": "tabletop"}, tiny_checkpoint)
