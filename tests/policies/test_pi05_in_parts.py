"""A policy that sees its cameras one after the other, and reads them layer by layer, acts as if it did all at once."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from walk_driver import Request, WalkDriver, drive
from worker_rig import WorkerRig

from mstar_rt.clock import ManualClock
from mstar_rt.engine import Engine
from mstar_rt.errors import InvalidArgument
from mstar_rt.message import CancelRequest, WalkDone
from mstar_rt.model import NodeCall, NodeResult, ServedModel
from policies.pi05.model import declare, declare_pi0

LAYER_NS = 1_000_000
DEPTH = tiny.network()["depth"]
DEEP = 5
PAGES_OF_ONE = 4
"""For a robot of two cameras, and not for two of them."""


def robot(folder: Path) -> ServedModel:
    return declare("robot", tiny.CHECKPOINT, tiny.robot_settings(folder))


def deep(folder: Path) -> ServedModel:
    """Of random weights."""
    settings = tiny.robot_settings(folder)
    return declare("robot", "", {**settings, "network": {**tiny.network(), "depth": DEEP}, "random_seed": 1})


def requests() -> list[Request]:
    """Of two cameras and of one, with long and short instructions."""
    words = ("push the red cup", "pull", "pull the red cup left", "push", "the cup")
    return [
        Request(
            "act",
            {name: torch.from_numpy(array) for name, array in tiny.observation(number, masked=number % 2 == 1).items()},
            {"instruction": text, "seed": number, "num_denoise_steps": 2},
        )
        for number, text in enumerate(words)
    ]


def actions(driver: WalkDriver, *given: Request, stagger: int = 0) -> list[torch.Tensor]:
    return [served.emitted["actions"][0] for served in driver.run(*given, stagger=stagger)]


def test_cameras_seen_one_by_one_lead_to_the_same_actions(tmp_path: Path) -> None:
    driver, given = drive(robot(tmp_path)), requests()[:3]
    whole = actions(driver, *given)
    assert ("see", 3) in driver.batches
    driver.batches.clear()
    driver.share_of = lambda num_left: 1
    parts = actions(driver, *given)
    assert [size for name, size in driver.batches if name == "see"] == [3, 2]
    assert [size for name, size in driver.batches if name == "prefill"] == [3] * DEPTH
    for got, wanted in zip(parts, whole, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    assert driver.num_pages_held == 0


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
def test_layers_of_a_batch_in_any_parts_lead_to_the_same_actions(tmp_path: Path, kind: str) -> None:
    """Each call of a step at another layer than its neighbour, some of them whole."""
    pi0 = {**tiny.pi0_settings(tmp_path), "random_seed": 1}
    driver = drive(robot(tmp_path) if kind == "pi05" else declare_pi0("pi0", "", pi0))
    given, draw = requests(), random.Random(0)
    whole = [actions(driver, one)[0] for one in given]
    for stagger in (0, 1, 2):
        driver.share_of = lambda num_left: draw.randint(1, num_left)
        for got, wanted in zip(actions(driver, *given, stagger=stagger), whole, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
        assert driver.num_pages_held == 0


@pytest.mark.parametrize("row", [0, 1])
def test_the_actions_are_the_published_ones_layer_by_layer(row: int) -> None:
    golden = tiny.golden()
    driver = drive(declare("tiny", tiny.CHECKPOINT, tiny.published_settings()))
    driver.share_of = lambda num_left: 1
    given = {name: torch.from_numpy(array) for name, array in tiny.published_inputs(golden, row).items()}
    (got,) = driver.run_one("act", given).emitted["actions"]
    torch.testing.assert_close(got, torch.from_numpy(golden["actions"][row]), rtol=0, atol=1e-5)


def test_tokens_that_are_unknown_are_refused_with_the_first_part() -> None:
    driver = drive(declare("tiny", tiny.CHECKPOINT, tiny.published_settings()))
    driver.share_of = lambda num_left: 1
    inputs = {name: torch.from_numpy(array) for name, array in tiny.published_inputs(tiny.golden(), 0).items()}
    with pytest.raises(InvalidArgument, match="expected 0 to 511"):
        driver.run_one("act", inputs | {"token_ids": torch.tensor([2, 512])})
    assert driver.num_pages_held == 0


# --- one worker ------------------------------------------------------------------------------------------------------


class Timed(Engine):
    """An engine of a prefill on which a layer takes LAYER_NS, with the parts of each step."""

    def __init__(self, engine: Any, clock: ManualClock) -> None:
        self.node, self.in_parts, self._engine, self._clock = engine.node, engine.in_parts, engine, clock
        self.steps: list[list[tuple[str, range | None]]] = []
        self.network: Any = engine._code._network

    def batch_key(self, call: NodeCall) -> Any:
        return self._engine.batch_key(call)

    def num_items(self, call: NodeCall) -> int:
        return self._engine.num_items(call)

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        self.steps.append([(call.request_id, call.part) for call in calls])
        self._clock.advance_ns(sum(len(call.part or range(DEEP)) for call in calls) * LAYER_NS)
        return self._engine.run(calls)


class Rig(WorkerRig):
    """Requests are numbers: those of `requests`."""

    def __init__(self, model: ServedModel, max_step_ms: float | None, pages: int | None = None) -> None:
        clock = ManualClock()
        super().__init__(model, clock, max_step_ms=max_step_ms, spare_all_but=pages)
        self.prefill = Timed(self.loaded.engines["prefill"], clock)
        self.loaded.engines["prefill"] = self.prefill  # type: ignore[index]

    def warm(self) -> None:
        """Until the worker knows what layers take."""
        for turn in range(3):
            self.start(0, f"warm {turn}")
            self.run()
        self.order.clear()
        self.prefill.steps.clear()

    def start(self, number: int, name: str = "", **fields: Any) -> None:
        asked = requests()[number]
        arrays = {key: tensor.numpy() for key, tensor in asked.tensors.items()}
        params = self.model.check_request("act", arrays, asked.params)
        self.start_walk(name or str(number), "act", arrays, params, **fields)

    def actions(self, name: str) -> Any:
        return torch.from_numpy(self.given[name]["actions"][0])

    def turn_until_part(self, name: str) -> None:
        """A part of its prefill has run, and others have not."""
        while not any(request == name for request, _ in self.prefill.steps[-1:] and self.prefill.steps[-1]):
            self.turn()
        (part,) = (part for request, part in self.prefill.steps[-1] if request == name)
        assert part is not None
        assert part.stop < DEEP


def test_a_control_tick_overtakes_between_two_layers(tmp_path: Path) -> None:
    rig = Rig(deep(tmp_path), max_step_ms=2.5)
    rig.warm()
    rig.start(0)
    rig.turn_until_part("0")
    rig.start(1, criticality="control", deadline_ns=rig.clock.now_ns() + 100 * LAYER_NS)
    rig.run()
    assert rig.order == ["1", "0"]
    assert rig.prefill.steps == [
        [("0", range(2))],
        [("1", range(2))],
        [("1", range(2, 4))],
        [("1", range(4, 5)), ("0", range(2, 3))],
        [("0", range(3, 5))],
    ]
    whole = Rig(deep(tmp_path), max_step_ms=None)
    for number in (0, 1):
        whole.start(number)
    whole.run()
    assert whole.prefill.steps == [[("0", None), ("1", None)]]
    for name in ("0", "1"):
        torch.testing.assert_close(rig.actions(name), whole.actions(name), rtol=0, atol=1e-5)
    assert "over_bound/robot/prefill" not in rig.worker.stats()


def test_cancelled_between_two_layers_every_page_goes(tmp_path: Path) -> None:
    rig = Rig(deep(tmp_path), max_step_ms=2.5)
    rig.warm()
    rig.start(0)
    rig.turn_until_part("0")
    allocator = rig.loaded.pools["context"].allocator
    assert allocator.num_held > 0
    rig.conductor.send("worker/0", CancelRequest("0"))
    rig.turn()
    assert rig.worker.stats()["active_walks"] == rig.worker.stats()["ready_units"] == allocator.num_held == 0


def test_a_robot_that_finds_no_pages_waits_until_another_one_is_through_its_layers(tmp_path: Path) -> None:
    """Once it has begun a prefill takes no more pages, so two of them never wait for each other."""
    alone, rig = Rig(deep(tmp_path), max_step_ms=None), Rig(deep(tmp_path), max_step_ms=2.5, pages=PAGES_OF_ONE)
    rig.warm()
    for number in (0, 2):
        alone.start(number)
    alone.run()
    rig.start(0)
    rig.turn_until_part("0")
    rig.start(2, criticality="control")
    rig.run()
    assert rig.prefill.steps[:3] == [[("0", range(2))], [("2", range(2))], [("0", range(2, 4))]]
    assert rig.order == ["0", "2"]
    for name in ("0", "2"):
        torch.testing.assert_close(rig.actions(name), alone.actions(name), rtol=0, atol=1e-5)


def test_a_part_that_fails_once_is_run_again_and_one_that_always_does_ends_its_request(tmp_path: Path) -> None:
    """Two robots share every step: what the other had stored stays."""
    alone, rig = Rig(deep(tmp_path), max_step_ms=None), Rig(deep(tmp_path), max_step_ms=8)
    rig.warm()
    for number in (0, 2):
        alone.start(number)
    alone.run()
    prefill, failures = rig.prefill.network.prefill, iter([False, True, False])

    def failing(tokens: torch.Tensor, positions: torch.Tensor, attention: Any, layers: range) -> torch.Tensor:
        after = prefill(tokens, positions, attention, layers)
        if next(failures, False):
            raise RuntimeError("after it has stored")
        return after

    rig.prefill.network.prefill = failing
    for number in (0, 2):
        rig.start(number)
    rig.run()
    assert any(len(step) == 2 for step in rig.prefill.steps)
    assert next(failures, None) is None
    assert all(isinstance(end, WalkDone) for end in rig.ends.values())
    for name in ("0", "2"):
        torch.testing.assert_close(rig.actions(name), alone.actions(name), rtol=0, atol=1e-5)
