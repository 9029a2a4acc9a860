"""The golden pi0.5 through programs, engines and the paged cache: the published numbers, and what batching must not change."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from walk_driver import Request, WalkDriver, drive

from mstar_rt.engine import Engine
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.graph import GraphNode
from mstar_rt.model import NodeCall, NodeResult
from policies.pi05.model import declare, declare_pi0

Tensors = dict[str, torch.Tensor]
GUIDANCE = {"delay": 2, "prefix_attention_horizon": 6, "max_guidance_weight": 10.0, "schedule": "linear"}


def tensors(arrays: tiny.Arrays) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return tensors(tiny.golden())


@pytest.fixture
def published() -> WalkDriver:
    return drive(declare("tiny", tiny.CHECKPOINT, tiny.published_settings()))


@pytest.fixture
def robot(tmp_path: Path) -> WalkDriver:
    return drive(declare("robot", tiny.CHECKPOINT, tiny.robot_settings(tmp_path)))


def published_inputs(row: int) -> Tensors:
    return tensors(tiny.published_inputs(tiny.golden(), row))


def actions(served: Any) -> torch.Tensor:
    (got,) = served.emitted["actions"]
    return got


class Spy(Engine):
    """An engine that shows every batch to `look`, which may change it."""

    def __init__(self, driver: WalkDriver, name: str, look: Any) -> None:
        self._engine = driver.loaded.engines[name]
        self.node: GraphNode = self._engine.node
        self._look = look
        driver.loaded.engines[name] = self

    def batch_key(self, call: NodeCall) -> Any:
        return self._engine.batch_key(call)

    def num_items(self, call: NodeCall) -> int:
        return self._engine.num_items(call)

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        return self._engine.run(self._look(calls))


@pytest.mark.parametrize("row", [0, 1])
def test_the_context_is_the_published_one(published: WalkDriver, golden: Tensors, row: int) -> None:
    seen = []
    prefill = published.loaded.engines["prefill"]._code  # type: ignore[attr-defined]
    Spy(published, "prefill", lambda calls: seen.append(prefill.tokens(calls[0])) or calls)
    published.run_one("act", published_inputs(row))
    close(seen[0], golden["prefix_embeds"][row][golden["prefix_pad_mask"][row]])


@pytest.mark.parametrize("row", [0, 1])
def test_the_velocity_is_the_published_one(published: WalkDriver, golden: Tensors, row: int) -> None:
    """At time 0.7: the fourth of ten steps, on the noise itself."""
    noise = golden["noise"][row]

    def fourth(calls: Sequence[NodeCall]) -> list[NodeCall]:
        return [dataclasses.replace(call, iteration=(3,), inputs={**call.inputs, "x": noise}) for call in calls]

    Spy(published, "denoise", fourth)
    published.run_one("act", published_inputs(row))
    moved = published.seen["denoise"][0][1]["x"]
    close((noise - moved) * 10, golden["velocity_t0.7"][row])


@pytest.mark.parametrize("row", [0, 1])
def test_the_actions_are_the_published_ones(published: WalkDriver, golden: Tensors, row: int) -> None:
    served = published.run_one("act", published_inputs(row))
    close(actions(served), golden["actions"][row])
    assert served.emitted["num_denoise_steps"][0] == 10
    assert not served.flags
    assert published.num_pages_held == 0


@pytest.mark.parametrize("row", [0, 1])
def test_the_guided_actions_are_the_published_ones(published: WalkDriver, golden: Tensors, row: int) -> None:
    inputs = {**published_inputs(row), "previous_actions": golden["rtc_prev_chunk_left_over"][row]}
    served = published.run_one("act", inputs, chunking="guided_identity", **GUIDANCE)
    close(actions(served), golden["rtc_actions"][row])


def test_the_context_is_written_once_and_the_flow_leaves_it_alone(published: WalkDriver) -> None:
    lengths, pages = [], []

    def look(calls: Sequence[NodeCall]) -> Sequence[NodeCall]:
        for call in calls:
            table = call.sequences.get("context")
            lengths.append(table.length)
            pages.append(published.loaded.pools["context"].read_tokens(table, 0, table.length))
        return calls

    Spy(published, "denoise", look)
    published.run_one("act", published_inputs(0))
    assert lengths == [16 + 22] * 10
    assert all(torch.equal(page, pages[0]) for page in pages)
    assert published.batches.count(("prefill", 1)) == 1
    assert published.num_pages_held == 0


def different_requests() -> list[Request]:
    """Prompts of several lengths, with and without the second camera, of several numbers of steps, with and without
    chunking of every mode."""
    common = {"seed": 3}
    return [
        Request("act", tensors(tiny.observation(0)), {**common, "instruction": "push the red cup"}),
        Request("act", tensors(tiny.observation(1, masked=True)), {"instruction": "pull", "num_denoise_steps": 7}),
        Request("act", tensors(tiny.observation(2)), {"instruction": "pull the cup", "seed": 5, "num_denoise_steps": 3}),
        *(
            Request(
                "act",
                {**tensors(tiny.observation(number)), "previous_actions": torch.from_numpy(tiny.previous(number))},
                {"instruction": "push left", "chunking": mode, "delay": delay, "num_denoise_steps": steps, **more},
            )
            for number, (mode, delay, steps, more) in enumerate(
                [
                    ("guided", 2, 5, {}), ("guided", 0, 10, {"schedule": "exponential"}), ("prefix", 3, 10, {}),
                    ("prefix", 1, 5, {}), ("guided_identity", 4, 6, {"max_guidance_weight": 3.0}),
                ],
                start=3,
            )
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("stagger", [0, 9])
def test_a_batch_gives_what_each_request_gives_alone(robot: WalkDriver, stagger: int) -> None:
    """Together from the start, and each at another iteration."""
    requests = different_requests()
    alone = [actions(robot.run(request)[0]) for request in requests]
    robot.batches.clear()
    together = [actions(served) for served in robot.run(*requests, stagger=stagger)]
    for one, other in zip(alone, together, strict=True):
        close(other, one)
    assert max(size for name, size in robot.batches if name == "denoise") == (2 if stagger else 4)
    assert robot.num_pages_held == 0


def test_modes_that_need_steps_of_their_own_get_them(robot: WalkDriver) -> None:
    keys = []
    Spy(
        robot,
        "denoise",
        lambda calls: keys.append({robot.loaded.engines["denoise"].batch_key(c) for c in calls}) or calls,
    )
    for request in different_requests():
        robot.run(request)
    assert {key for of_batch in keys for key in of_batch} == {"none", "guided", "prefix"}


def test_a_masked_camera_costs_nothing(robot: WalkDriver) -> None:
    for masked, num_frames in ((False, 2), (True, 1)):
        robot.seen.clear()
        robot.run_one("act", tensors(tiny.observation(masked=masked)), instruction="push")
        (_, outputs), *_ = robot.seen["see"]
        assert len(outputs["image_tokens"]) == 16 * num_frames


def test_all_cameras_may_be_masked(published: WalkDriver) -> None:
    inputs = published_inputs(0)
    blind = {name: value for name, value in inputs.items() if not name.startswith("image")}
    got = actions(published.run_one("act", blind))
    assert (got - actions(published.run_one("act", inputs))).abs().max() > 1e-3


@pytest.mark.parametrize("bad", [-1, 512])
def test_token_ids_must_be_known(published: WalkDriver, bad: int) -> None:
    inputs = published_inputs(0)
    inputs["token_ids"] = torch.tensor([2, bad])
    with pytest.raises(InvalidArgument, match="expected 0 to 511"):
        published.run_one("act", inputs)


def test_bfloat16_is_close(tmp_path: Path, golden: Tensors) -> None:
    half = drive(declare("tiny", tiny.CHECKPOINT, tiny.published_settings()), "bfloat16")
    got = actions(half.run_one("act", published_inputs(0)))
    assert (got - golden["actions"][0]).abs().max() < 0.15
    inputs = {**published_inputs(0), "previous_actions": golden["rtc_prev_chunk_left_over"][0]}
    assert torch.isfinite(actions(half.run_one("act", inputs, chunking="guided", delay=2))).all()


def test_pi0_keeps_a_token_of_its_state_behind_the_context(tmp_path: Path) -> None:
    settings = {**tiny.pi0_settings(tmp_path), "random_seed": 1}
    driver = drive(declare_pi0("pi0", "", settings))
    lengths = []
    Spy(driver, "denoise", lambda calls: lengths.extend(c.sequences.get("context").length for c in calls) or calls)
    driver.run_one("act", tensors(tiny.observation()), instruction="push the cup")
    assert lengths == [2 * 16 + 4 + 1] * 10
    assert driver.num_pages_held == 0


def test_actions_that_are_no_numbers_never_reach_a_robot(published: WalkDriver) -> None:
    def broken(calls: Sequence[NodeCall]) -> list[NodeCall]:
        return [dataclasses.replace(call, inputs={**call.inputs, "x": call.inputs["x"] / 0}) for call in calls]

    Spy(published, "finish", broken)
    with pytest.raises(FailedPrecondition, match="the policy gives NaN or infinity"):
        published.run_one("act", published_inputs(0))
    assert published.num_pages_held == 0
