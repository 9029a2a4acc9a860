"""Fewer denoise steps where the budget asks for it: how many, and that a chunk is the one of so many steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from published_policies import published
from walk_driver import Request, Served, WalkDriver, drive

from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import NodeCall
from policies.anytime.pace import OF, SPENT, WAY_BACK_NS, steps_in_time
from policies.anytime.step_times import MAX_REQUESTS, WINDOW, StepTimes
from policies.diffusion.model import USUAL_MIN_TURNS
from policies.diffusion.model import declare as declare_diffusion
from policies.pi05.model import declare, declare_pi0

STEP_NS, LAST_NS = 1_000_000, 300_000
WHAT = {"instruction": "push the red cup", "seed": 5}
CHUNKING: dict[str, dict[str, Any]] = {
    "none": {},
    "guided": {"delay": 2, "prefix_attention_horizon": 6},
    "guided_identity": {"delay": 2, "prefix_attention_horizon": 6},
    "prefix": {"delay": 3},
}

# ---- how many


def call(left_ns: int | None, *, step_ns: int | None = STEP_NS, late_by_ns: int = 0) -> NodeCall:
    now_ns = 7_000_000_000
    predicted = {"denoise": step_ns, "finish": LAST_NS}
    return NodeCall(
        "request", "", "act_anytime", (), {}, {"num_denoise_steps": 10, "min_denoise_steps": 2}, lambda: now_ns,
        None if left_ns is None else now_ns + left_ns, predicted_ns=predicted.get,
    )  # fmt: skip


def room_for(num_steps: float) -> int:
    """From the flow's start to the deadline."""
    return int(num_steps * STEP_NS * OF / SPENT) + LAST_NS + WAY_BACK_NS


@pytest.mark.parametrize(
    ("left_ns", "num_steps"),
    [
        (None, 10),
        (10**12, 10),
        (room_for(10), 10),
        (room_for(10) - 1, 9),
        (room_for(5.9), 5),
        (room_for(2), 2),
        (room_for(1), 2),
        (1, 2),
        (0, 2),
        (-(10**9), 2),
    ],
)
def test_as_many_as_end_in_time(left_ns: int | None, num_steps: int) -> None:
    """A flow that begins too late, or after its deadline, gets the fewest."""
    assert steps_in_time(call(left_ns)) == num_steps


def test_all_while_nobody_has_measured_a_step() -> None:
    assert steps_in_time(call(1, step_ns=None)) == 10
    assert steps_in_time(call(room_for(5), step_ns=0)) == 10


def test_steps_that_others_come_between_count_as_long_as_they_take() -> None:
    assert steps_in_time(call(room_for(9)), measured_ns=3 * STEP_NS) == 3
    assert steps_in_time(call(room_for(9)), measured_ns=STEP_NS // 2) == 9, "a step takes what it takes"


def step(request: str, index: int, at_ns: int, walk: str = "act_anytime", num_steps: int = 4) -> NodeCall:
    times = torch.zeros(num_steps)
    return NodeCall(request, "", walk, (index,), {"times": times}, {}, lambda: at_ns)


def test_from_step_to_step_is_measured_and_what_was_slow_long_ago_is_forgotten() -> None:
    times = StepTimes()
    assert times.high_ns == 0
    times.begin([step("a", 0, 100), step("plain", 0, 100, walk="act")])
    times.begin([step("b", 0, 130)])
    assert times.high_ns == 0, "nothing has had a second step"
    times.begin([step("a", 1, 150), step("b", 1, 150), step("plain", 1, 999, walk="act")])
    assert times.high_ns == 20, "of 50 and 20: nine tenths of the way, rounded down"
    times.begin([step("a", 2, 250)])
    assert times.high_ns == 50
    for number in range(WINDOW):
        times.begin([step(f"c{number}", 2, 1000)])
        times.begin([step(f"c{number}", 3, 1007)])
    assert times.high_ns == 7


def test_a_request_that_has_had_its_last_step_or_never_will_is_not_kept() -> None:
    times = StepTimes()
    for number in range(2 * MAX_REQUESTS):
        times.begin([step(f"dropped {number}", 0, number)])
    assert len(times._begun_ns) == MAX_REQUESTS
    for number in range(MAX_REQUESTS):
        for index in range(4):
            times.begin([step(f"done {number}", index, number)])
    assert not any(name.startswith("done") for name in times._begun_ns)


# ---- the chunk


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> WalkDriver:
    return drive(declare("robot", tiny.CHECKPOINT, tiny.robot_settings(tmp_path_factory.mktemp("policy"))))


@pytest.fixture
def measured(robot: WalkDriver) -> WalkDriver:
    return with_costs(robot)


def with_costs(driver: WalkDriver) -> WalkDriver:
    driver.now_ns, driver.step_ns = 0, 0
    driver.predicted_ns = {"denoise": STEP_NS, "finish": LAST_NS}
    return driver


def seen(chunking: str, seed: int = 0) -> dict[str, torch.Tensor]:
    arrays = tiny.observation(seed)
    if chunking != "none":
        arrays["previous_actions"] = tiny.previous(seed)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def anytime(driver: WalkDriver, tensors: Any, deadline_ns: int | None, **params: Any) -> Served:
    (served,) = driver.run(Request("act_anytime", tensors, {**WHAT, **params}, deadline_ns))
    assert driver.num_pages_held == 0
    return served


def same_chunk(got: Served, want: Served) -> bool:
    (got_actions,), (want_actions,) = got.emitted["actions"], want.emitted["actions"]
    return torch.equal(got_actions, want_actions)


@pytest.mark.parametrize("chunking", CHUNKING)
@pytest.mark.parametrize("num_steps", [9, 5, 2])
def test_a_chunk_in_fewer_steps_is_the_one_that_asks_for_so_many(
    measured: WalkDriver, num_steps: int, chunking: str
) -> None:
    options = {"chunking": chunking, **CHUNKING[chunking]}
    fewer = anytime(measured, seen(chunking), room_for(num_steps), **options)
    asked = measured.run_one("act", seen(chunking), **WHAT, **options, num_denoise_steps=num_steps)
    assert same_chunk(fewer, asked)
    assert fewer.emitted["num_denoise_steps"][0] == asked.emitted["num_denoise_steps"][0] == num_steps
    assert (fewer.flags, asked.flags) == (["fewer_steps"], [])


def test_with_time_for_all_it_is_the_plain_chunk(measured: WalkDriver) -> None:
    plain = measured.run_one("act", seen("none"), **WHAT)
    for deadline_ns in (None, room_for(10)):
        served = anytime(measured, seen("none"), deadline_ns)
        assert same_chunk(served, plain)
        assert served.emitted["num_denoise_steps"][0] == 10
        assert not served.flags


def test_a_plain_chunk_has_all_its_steps_whatever_its_deadline(measured: WalkDriver) -> None:
    (served,) = measured.run(Request("act", seen("none"), WHAT, deadline_ns=1))
    assert served.emitted["num_denoise_steps"][0] == 10
    assert not served.flags


def test_what_came_before_the_flow_has_taken_its_time(measured: WalkDriver) -> None:
    """Four steps of 1 ms until the number is chosen: prepare, see, prefill, start."""
    measured.step_ns = STEP_NS
    served = anytime(measured, seen("none"), room_for(10))
    assert served.emitted["num_denoise_steps"][0] == 6
    assert measured.now_ns == (4 + 1 + 6 + 1) * STEP_NS


def test_requests_with_many_few_and_plain_steps_share_them(measured: WalkDriver) -> None:
    requests = [
        Request("act_anytime", seen("none", 1), WHAT, room_for(4)),
        Request("act_anytime", seen("none", 2), WHAT, room_for(7)),
        Request("act", seen("none", 0), WHAT),
    ]
    alone = [measured.run(one)[0] for one in requests]
    measured.batches.clear()
    together = measured.run(*requests)
    assert [size for name, size in measured.batches if name == "denoise"] == [3] * 4 + [2] * 3 + [1] * 3
    for got, want in zip(together, alone, strict=True):
        torch.testing.assert_close(got.emitted["actions"][0], want.emitted["actions"][0], rtol=0, atol=1e-5)
        assert got.emitted["num_denoise_steps"] == want.emitted["num_denoise_steps"]


def test_the_fewest_are_an_option_of_the_request_and_of_the_model(measured: WalkDriver, tmp_path: Path) -> None:
    served = anytime(measured, seen("none"), 1, min_denoise_steps=7)
    assert served.emitted["num_denoise_steps"][0] == 7
    model = declare("robot", "", {**tiny.robot_settings(tmp_path), "min_denoise_steps": 4})
    assert {param.name: param.default for param in model.task("act_anytime").params}["min_denoise_steps"] == 4
    for wrong in (0, 11):
        with pytest.raises(ConfigError, match=f"'min_denoise_steps' is {wrong}, expected 1 to 10"):
            declare("robot", "", {**tiny.robot_settings(tmp_path), "min_denoise_steps": wrong})


@pytest.mark.parametrize("steps", [{"min_denoise_steps": 10}, {"num_denoise_steps": 2}, {"num_denoise_steps": 1}])
def test_a_policy_with_nothing_to_leave_out_has_no_such_task(tmp_path: Path, steps: dict[str, int]) -> None:
    model = declare("robot", "", {**tiny.robot_settings(tmp_path), **steps})
    assert [task.name for task in model.tasks] == ["act"]
    assert model.policy is not None
    assert model.policy.anytime_task is None


def test_what_would_leave_nothing_out_or_throw_the_chunk_away_is_refused(measured: WalkDriver) -> None:
    with pytest.raises(InvalidArgument, match="fewer than num_denoise_steps, which is 2, down to min_denoise_steps"):
        anytime(measured, seen("none"), None, num_denoise_steps=2)
    options = {"chunking": "guided", **CHUNKING["guided"], "max_guidance_weight": 13.0}
    assert measured.run_one("act", seen("guided"), **WHAT, **options).emitted
    with pytest.raises(InvalidArgument, match=r"is 13, but with 2 denoise steps a guidance over 11\.6 throws"):
        anytime(measured, seen("guided"), None, **options)
    assert measured.num_pages_held == 0


def test_pi0_waits_for_its_state_before_it_chooses(tmp_path: Path) -> None:
    driver = with_costs(drive(declare_pi0("pi0", "", {**tiny.pi0_settings(tmp_path), "random_seed": 1})))
    driver.step_ns = STEP_NS
    served = anytime(driver, seen("none"), room_for(8))
    assert served.emitted["num_denoise_steps"][0] == 4, "four fifths of the 5 ms that are left of 10"
    driver.step_ns = 0
    assert same_chunk(served, driver.run_one("act", seen("none"), **WHAT, num_denoise_steps=4))


# ---- Diffusion Policy


@pytest.mark.parametrize("case", ["ddpm", "ddim"])
def test_a_diffusion_policy_takes_noise_off_less_often(case: str, tmp_path: Path) -> None:
    policy = published("diffusion_tiny", case)
    driver = with_costs(drive(declare_diffusion(case, str(policy.write(tmp_path)), {"min_denoise_steps": 2})))
    tensors = {name: value for name, value in policy.inputs(0).items() if name != "noise"}
    (fewer,) = driver.run(Request("act_anytime", tensors, {"seed": 3}, room_for(4)))
    asked = driver.run_one("act", tensors, seed=3, num_denoise_steps=4)
    assert same_chunk(fewer, asked)
    assert fewer.emitted["num_denoise_steps"][0] == 4
    assert fewer.flags == ["fewer_steps"]
    plain = driver.run_one("act", tensors, seed=3)
    assert same_chunk(driver.run_one("act_anytime", tensors, seed=3), plain)
    assert not same_chunk(fewer, plain)


def test_a_diffusion_policy_is_told_its_fewest_or_takes_ten_or_half(tmp_path: Path) -> None:
    folder = str(published("diffusion_tiny", "ddpm").write(tmp_path / "20"))
    in_six = str(published("diffusion_tiny", "ddim").write(tmp_path / "6"))
    for where, options, fewest in (
        (folder, {}, USUAL_MIN_TURNS),
        (in_six, {}, 3),
        (folder, {"min_denoise_steps": 4}, 4),
    ):
        task = declare_diffusion("push", where, options).task("act_anytime")
        assert {param.name: param.default for param in task.params}["min_denoise_steps"] == fewest
    whole = declare_diffusion("push", folder, {"min_denoise_steps": 20})
    assert [task.name for task in whole.tasks] == ["act"]
    for wrong in (0, 21, True, 2.0):
        with pytest.raises(ConfigError, match=f"'min_denoise_steps' is {wrong}, expected 1 to 20"):
            declare_diffusion("push", folder, {"min_denoise_steps": wrong})
    with pytest.raises(ConfigError, match="takes no options but min_denoise_steps, but got steps"):
        declare_diffusion("push", folder, {"steps": 3})
