"""pi0.5 and pi0 over gRPC: the published numbers, and that whatever a request says changes what it gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from golden_data import close
from serving import Serving, assert_nothing_is_held, serving_of, write_deployment

from mstar_rt.client import Client
from mstar_rt.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]
GUIDANCE = {"delay": 2, "prefix_attention_horizon": 6, "schedule": "linear", "max_guidance_weight": 10.0}


@pytest.fixture(scope="module")
def policy_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`robot` on rank 0, `apart` the same with its context and its flow on two ranks, pi0 with random weights."""
    folder = tmp_path_factory.mktemp("policies")
    robot = tiny.robot_settings(folder)
    robot["norm_stats"] = {"arm": robot["norm_stats"], "wide": tiny.write_statistics(folder / "wide.json", 1.5)}
    models = [
        {"name": "published", "family": "pi05", "checkpoint": tiny.CHECKPOINT, "options": tiny.published_settings()},
        {"name": "robot", "family": "pi05", "checkpoint": tiny.CHECKPOINT, "options": robot},
        {"name": "apart", "family": "pi05", "checkpoint": tiny.CHECKPOINT, "options": robot},
        {"name": "pi0", "family": "pi0", "options": {**tiny.pi0_settings(folder), "random_seed": 1}},
    ]
    deployment = {
        "name": "policies",
        "server": {"port": 0},
        "models": models,
        "workers": [{"rank": rank, "kv_memory_mb": 32, "check_outputs": True} for rank in range(2)],
        "placement": [
            *({"model": model["name"], "ranks": [0]} for model in models),
            {"model": "apart", "nodes": ["see", "prefill", "finish"], "ranks": [1]},
        ],
    }  # fmt: skip
    with serving_of(write_deployment(folder, deployment)) as running:
        yield running


@pytest.fixture
def policies(policy_serving: Serving) -> Iterator[Client]:
    with policy_serving.connect() as connected:
        yield connected


def act(client: Client, model: str, arrays: tiny.Arrays, **options: Any) -> np.ndarray:
    outputs = {output.name: output.value for output in client.run(model, "act", arrays, **options)}
    assert outputs["num_denoise_steps"] == options.get("num_denoise_steps", 10)
    return outputs["actions"]


@pytest.mark.parametrize("row", [0, 1])
def test_actions_equal_the_published_ones(policies: Client, row: int) -> None:
    golden = tiny.golden()
    inputs = tiny.published_inputs(golden, row)
    close(act(policies, "published", inputs), golden["actions"][row], 1e-5)
    inputs["previous_actions"] = golden["rtc_prev_chunk_left_over"][row]
    guided = act(policies, "published", inputs, chunking="guided_identity", **GUIDANCE)
    close(guided, golden["rtc_actions"][row], 1e-5)
    assert_nothing_is_held(policies)


BASE = {"instruction": "push the red cup", "normalization": "arm", "seed": 1}
CHUNKED = {**BASE, "chunking": "guided", "delay": 2, "prefix_attention_horizon": 5}
PREFIXED = {**BASE, "chunking": "prefix", "delay": 2}


def observed(**changed: np.ndarray | None) -> tiny.Arrays:
    arrays = {**tiny.observation(0), **changed}
    return {name: value for name, value in arrays.items() if value is not None}


def with_previous(seed: int = 9) -> tiny.Arrays:
    return observed(previous_actions=tiny.previous(seed))


NOISE = np.zeros((tiny.HORIZON, tiny.DIM), np.float32)
CHANGES: dict[str, tuple[tuple[tiny.Arrays, dict[str, Any]], tuple[tiny.Arrays, dict[str, Any]]]] = {
    "first camera": ((observed(), BASE), (observed(image_top=tiny.observation(1)["image_top"]), BASE)),
    "second camera": ((observed(), BASE), (observed(image_wrist=tiny.observation(1)["image_wrist"]), BASE)),
    "masked camera": ((observed(), BASE), (observed(image_wrist=None), BASE)),
    "state": ((observed(), BASE), (observed(state=tiny.observation(1)["state"]), BASE)),
    "instruction": ((observed(), BASE), (observed(), {**BASE, "instruction": "push the red left"})),
    "noise": ((observed(), BASE), (observed(noise=NOISE), BASE)),
    "seed": ((observed(), BASE), (observed(), {**BASE, "seed": 2})),
    "steps": ((observed(), BASE), (observed(), {**BASE, "num_denoise_steps": 9})),
    "normalization": ((observed(), BASE), (observed(), {**BASE, "normalization": "wide"})),
    "chunking": ((observed(), BASE), (with_previous(), CHUNKED)),
    "mode": ((with_previous(), CHUNKED), (with_previous(), {**CHUNKED, "chunking": "guided_identity"})),
    "previous actions": ((with_previous(), CHUNKED), (with_previous(8), CHUNKED)),
    "delay": ((with_previous(), CHUNKED), (with_previous(), {**CHUNKED, "delay": 3})),
    "mask": ((with_previous(), CHUNKED), (with_previous(), {**CHUNKED, "prefix_attention_horizon": 6})),
    "schedule": ((with_previous(), CHUNKED), (with_previous(), {**CHUNKED, "schedule": "exponential"})),
    "guidance": ((with_previous(), CHUNKED), (with_previous(), {**CHUNKED, "max_guidance_weight": 3.0})),
    "prefix": ((with_previous(), PREFIXED), (with_previous(), {**PREFIXED, "delay": 3})),
}  # fmt: skip


def test_equal_requests_get_equal_chunks_and_every_change_another_one(policies: Client) -> None:
    for what, (one, other) in CHANGES.items():
        first, again, changed = (act(policies, "robot", arrays, **options) for arrays, options in (one, one, other))
        np.testing.assert_array_equal(first, again, err_msg=what)
        assert np.abs(first - changed).max() > 1e-4, what
    assert_nothing_is_held(policies)


def test_many_at_once_get_what_each_gets_alone_on_one_rank_and_on_two(policies: Client) -> None:
    asked = [(arrays, options) for change in CHANGES.values() for arrays, options in change]
    alone = [act(policies, "robot", arrays, **options) for arrays, options in asked]
    with ThreadPoolExecutor(8) as pool:
        for model in ("robot", "apart"):
            together = list(pool.map(lambda request, name=model: act(policies, name, request[0], **request[1]), asked))
            for one, other in zip(alone, together, strict=True):
                close(other, one, 1e-5)
    assert_nothing_is_held(policies)


@pytest.mark.parametrize("model", ["robot", "apart"])
def test_a_budget_that_is_too_small_for_all_steps_gives_the_chunk_of_fewer(policies: Client, model: str) -> None:
    """On one rank and on two. The budget is moved until it fits this machine, whatever else runs on it."""
    steps = {"num_denoise_steps": 64}
    act(policies, model, observed(), **BASE, **steps)
    budget_ms, num_steps = 40.0, 64
    for _ in range(200):
        stream = policies.run(model, "act_anytime", observed(), **BASE, **steps, budget_ms=budget_ms)
        try:
            outputs = {output.name: output.value for output in stream}
        except (DeadlineExceeded, ResourceExhausted):
            budget_ms *= 1.3
            continue
        num_steps = int(outputs["num_denoise_steps"])
        if num_steps < 64:
            break
        assert stream.done is not None
        assert not stream.done.flags
        budget_ms *= 0.8
    assert 2 <= num_steps < 64
    assert stream.done is not None
    assert stream.done.flags == ("fewer_steps",)
    close(outputs["actions"], act(policies, model, observed(), **BASE, num_denoise_steps=num_steps), 1e-6)
    assert_nothing_is_held(policies)


def test_pi0_reads_its_state_as_a_token(policies: Client) -> None:
    chunks = [
        act(policies, "pi0", observed(state=state), instruction="push", seed=1)
        for state in (tiny.observation(0)["state"], tiny.observation(1)["state"])
    ]
    assert np.abs(chunks[0][:, 2:4] - chunks[1][:, 2:4]).max() > 1e-4  # not by the anchor alone
    assert_nothing_is_held(policies)


def test_flags_say_what_would_be_silent(policies: Client) -> None:
    stream = policies.run("robot", "act", observed(), **{**CHUNKED, "instruction": "fetch the red cup"})
    list(stream)
    assert stream.done is not None
    assert set(stream.done.flags) == {"unknown_words", "no_previous_actions"}


@pytest.mark.parametrize(
    ("arrays", "options", "sentence"),
    [
        (observed(image_top=None), BASE, "tensor 'image_top' is missing"),
        (observed(image_top=np.zeros((55, 56, 3), np.uint8)), BASE, r"expected \[56, 56, 3\]"),
        (observed(image_top=np.full((56, 56, 3), 2.0, np.float32)), BASE, "expected at most 1"),
        (observed(state=np.full(3, np.nan, np.float32)), BASE, "NaN"),
        (
            observed(),
            {**BASE, "instruction": "push the red cup " * 9},
            "the prompt has 48 tokens, this policy takes 24",
        ),
        (observed(token_ids=np.array([2, 3])), BASE, "token_ids and an instruction are both given"),
        (observed(), {**BASE, "delay": 2}, "'delay' is 2, which does not count with chunking 'none'"),
        (with_previous(), {**PREFIXED, "delay": 5}, "trained for prefixes of at most 4"),
        (observed(), {**BASE, "normalization": "leg"}, "expected one of arm, wide"),
        (observed(), {"instruction": "push"}, "'normalization' is missing"),
        (observed(), {"normalization": "arm"}, "'instruction' is missing"),
        (observed(), {**BASE, "temperature": 1.0}, "unknown option 'temperature'"),
    ],
)
def test_wrong_requests_are_refused(
    policies: Client, arrays: tiny.Arrays, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        act(policies, "robot", arrays, **options)
    assert_nothing_is_held(policies)


def test_a_robot_finds_what_it_needs_to_know(policies: Client) -> None:
    task = policies.describe("robot").tasks["act"]
    assert {spec.name for spec in task.inputs} >= {"image_top", "image_wrist", "state", "previous_actions", "noise"}
    assert {param.name for param in task.options} >= {"instruction", "chunking", "delay", "num_denoise_steps", "seed"}
