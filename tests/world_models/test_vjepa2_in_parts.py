"""The long nodes of V-JEPA 2-AC run in parts, of any sizes, as they run at once; also where a part fails and is run again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from worker_rig import WorkerRig

from mstar_rt.clock import MonotonicClock
from mstar_rt.model import NodeCall
from mstar_rt.nn.norms import normalise_latents
from tests.world_models.dense_imagination import random_scene
from world_models.vjepa2.model import declare

SHAPE = (16, 64)
GOALS = normalise_latents(torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(5)))
TOLERANCE = 1e-5
# With this seed no two candidates cost so nearly the same that rounding decides which of them is an elite.
PLAN = {"num_samples": 12, "num_elites": 3, "num_iterations": 2, "rollout_horizon": 3, "seed": 2}


def frames(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def scene(num_frames: int, batch: int, horizon: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return dict(random_scene(num_frames, batch, horizon, SHAPE, seed=seed).rollout)


REQUESTS: dict[str, tuple[str, dict[str, torch.Tensor], dict[str, Any]]] = {
    "frames": ("encode", {"frames": frames(7)}, {}),
    "rollout": ("rollout", scene(5, 6, 4), {}),
    "one_step": ("rollout", scene(3, 5, 1), {}),
    "distances": ("rollout", scene(2, 5, 3) | {"goal_frames": frames(3)}, {"output": "goal_distance", "goal_use": "per_step"}),
    "sliding": ("rollout", scene(4, 5, 9), {"context_window": 4, "window_stride": 3}),
    "plan": ("plan", scene(3, 1, 1) | {"goal_latents": GOALS[:1]}, PLAN),
    "tree": ("plan", scene(2, 1, 1) | {"goal_latents": GOALS[:1]}, PLAN | {"tree_branching": (2.0, 3.0, 2.0)}),
    "sliding_tree": (
        "plan", scene(2, 1, 1) | {"goal_latents": GOALS[:1]},
        PLAN | {"tree_branching": (2.0, 3.0, 2.0), "context_window": 2, "window_stride": 1},
    ),
}  # fmt: skip


def sizes(kind: int) -> Callable[[int], int]:
    """One item at a time, or any number that a seed says, but not all at once."""
    draw = random.Random(kind)
    return lambda num_left: 1 if kind == 0 else draw.randint(1, max(1, 2 * num_left // 3))


def inputs_of(task: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A scene has actions, which a plan does not take."""
    return {key: value for key, value in tensors.items() if task != "plan" or key not in ("actions", "states")}


def served(driver: Any, make_request: Any, names: Sequence[str]) -> list[dict[str, list[torch.Tensor]]]:
    requests = []
    for name in names:
        task, tensors, params = REQUESTS[name]
        requests.append(make_request(task, inputs_of(task, tensors), params))
    return [one.emitted for one in driver.run(*requests)]


def assert_equal(parts: Any, whole: Any) -> None:
    for one, other in zip(parts, whole, strict=True):
        assert one.keys() == other.keys()
        for name in other:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("name", REQUESTS)
def test_in_parts_as_at_once(driver: Any, make_request: Any, name: str, kind: int) -> None:
    whole = served(driver, make_request, [name])
    num_batches = len(driver.batches)
    driver.share_of = sizes(kind)
    assert_equal(served(driver, make_request, [name]), whole)
    assert len(driver.batches) > 2 * num_batches
    assert driver.num_pages_held == 0


@pytest.mark.parametrize("kind", range(4))
def test_parts_of_several_requests_share_steps(driver: Any, make_request: Any, kind: int) -> None:
    names = ["rollout", "sliding", "distances", "one_step", "rollout"]
    whole = served(driver, make_request, names)
    driver.share_of = sizes(kind)
    driver.batches.clear()
    assert_equal(served(driver, make_request, names), whole)
    assert max(size for name, size in driver.batches if name == "predict") >= 3
    assert driver.num_pages_held == 0


def test_a_session_that_observes_in_parts_plans_from_the_same_history(
    driver: Any, make_driver: Any, tiny_options: Any, tiny_checkpoint: Any
) -> None:
    other = make_driver(tiny_options, tiny_checkpoint)
    other.share_of = sizes(0)
    plans = []
    for each in (driver, other):
        for number in range(4):
            given = {"frames": frames(1, number), "state": torch.zeros(7)}
            if number:
                given["executed_action"] = torch.full((7,), 0.01)
            each.run_in("s", "observe", given)
        plans.append(each.run_in("s", "plan", {"goal_latents": GOALS[:1]}, **PLAN).emitted)
        each.close("s")
        assert each.num_pages_held == 0
    assert_equal(plans[1:], plans[:1])


class Flaky:
    """The code of a node, of which every second run computes all, and then fails."""

    def __init__(self, code: Any) -> None:
        self._code, self._num_runs = code, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)

    def run(self, calls: Sequence[NodeCall], *attention: Any) -> Any:
        results = self._code.run(calls, *attention)
        self._num_runs += 1
        if self._num_runs % 2:
            raise RuntimeError("late")
        return results


@pytest.mark.parametrize("kind", range(2))
@pytest.mark.parametrize("name", REQUESTS)
def test_a_part_that_failed_is_run_again(driver: Any, make_request: Any, name: str, kind: int) -> None:
    whole = served(driver, make_request, [name])
    for engine in driver.loaded.engines.values():
        if engine.in_parts:
            engine._code = Flaky(engine._code)
            run = engine.run
            engine.run = lambda calls, engine=engine, run=run: again(run, calls)
    driver.share_of = sizes(kind)
    assert_equal(served(driver, make_request, [name]), whole)
    assert driver.num_pages_held == 0


def again(run: Callable[[Sequence[NodeCall]], Any], calls: Sequence[NodeCall]) -> Any:
    with pytest.raises(RuntimeError, match="late"):
        run(calls)
    return run(calls)


def test_a_worker_with_short_steps_gives_what_one_without_gives(tiny_options: Any, tiny_checkpoint: Any) -> None:
    """Whatever the sizes that it measures lead to, and whoever shares the parts."""
    model = declare("tiny", str(tiny_checkpoint), tiny_options)
    rigs = [WorkerRig(model, MonotonicClock(), max_step_ms) for max_step_ms in (None, 1.5)]
    for rig in rigs:
        for turn in range(2):
            for name, (task, tensors, options) in REQUESTS.items():
                arrays = {key: value.numpy() for key, value in inputs_of(task, tensors).items()}
                rig.start_walk(f"{name} {turn}", task, arrays, model.check_request(task, arrays, options))
            rig.run()
    whole, parts = rigs
    for request, emitted in whole.given.items():
        for name, values in emitted.items():
            for one, other in zip(parts.given[request][name], values, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    assert sum(map(parts.num_steps, whole.given)) > sum(map(whole.num_steps, whole.given))
