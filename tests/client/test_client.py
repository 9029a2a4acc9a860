"""The blocking client against the real server: what it gives back, and errors of ours with the server's sentence."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import cv2
import numpy as np
import pytest
from toy_runtime import (
    MAX_HORIZON,
    PATCHES,
    SIZE,
    WIDTH,
    Job,
    ToyRuntime,
    emit_improvement,
    never,
    toy_runtime,
)

from mstar_rt.client import Client, Plan, PlanImprovement, connect
from mstar_rt.errors import (
    DeadlineExceeded,
    InvalidArgument,
    MstarError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)  # fmt: skip
from mstar_rt.message import CancelRequest, Submit

FRAME = np.full((SIZE, SIZE, 3), 5, np.uint8)
STATE = np.zeros(7)


def test_it_imports_no_torch_and_no_server() -> None:
    program = (
        "import sys, mstar_rt.client; "
        "unwanted = ('torch', 'msgspec', 'zmq', 'cv2', 'mstar_rt.server', 'mstar_rt.model'); "
        "bad = [module for module in unwanted if module in sys.modules]; "
        "sys.exit(' '.join(bad) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fifteen_lines_get_a_plan(runtime: ToyRuntime) -> None:
    with connect(runtime.address) as client:
        client.wait_until_serving(timeout_s=10)
        plan = client.plan("toy", FRAME, FRAME, STATE, num_iterations=2, rollout_horizon=3, budget_ms=5000)
    assert plan.actions.shape == (3, 7)
    assert plan.actions.dtype == np.float32
    assert (plan.cost, plan.elite_mean_cost, plan.num_iterations, plan.flags) == (0.5, 1.0, 2, ())
    assert [improvement.cost for improvement in plan.improvements] == [1.0, 0.5]
    assert plan.timing.nodes["encoder"].run_us == 40.0
    assert plan.timing.loops["cem"].num_iterations == 2
    assert plan.timing.total_us > plan.timing.decode_us > 0
    assert plan.request_id.startswith("r-")


def test_encode_takes_arrays_and_files(client: Client) -> None:
    png = cv2.imencode(".png", np.full((SIZE, SIZE, 3), 5, np.uint8))[1].tobytes()
    for frames, count in ((FRAME, 1), (np.stack([FRAME, FRAME]), 2), (png, 1), ([png, png], 2)):
        encoding = client.encode("toy", frames)
        assert encoding.latents.shape == (count, PATCHES, WIDTH)
        assert (encoding.latents == 5).all()


def test_a_rollout_gives_each_step_as_it_is_made(client: Client, runtime: ToyRuntime) -> None:
    actions = np.ones((MAX_HORIZON, 7))
    stream = client.rollout("toy", FRAME, actions, STATE)
    steps = list(stream)
    assert [step.step for step in steps] == [0, 1, 2, 3]
    last = steps[-1]
    assert last.latent is not None
    assert last.pose is not None
    assert last.latent.shape == (PATCHES, WIDTH)
    np.testing.assert_array_equal(last.pose, np.full(7, 4, np.float32))
    assert stream.done is not None
    assert stream.done.flags == ("beyond_trained_positions",)
    batch = list(client.rollout("toy", FRAME, np.ones((2, 1, 7)), STATE, states=np.zeros((2, 1, 7))))
    assert batch[0].pose is not None
    assert batch[0].pose.shape == (2, 7)
    assert "states" in runtime.wait_for(Submit, 2)[1].inputs


def test_latents_stand_in_for_frames(client: Client, runtime: ToyRuntime) -> None:
    latents = client.encode("toy", FRAME).latents
    list(client.rollout("toy", None, np.ones((1, 7)), STATE, latents=latents))
    assert "context_latents" in runtime.wait_for(Submit, 2)[1].inputs


def test_closing_a_plan_stream_cancels_the_search(client: Client, runtime: ToyRuntime) -> None:
    async def endless(job: Job) -> None:
        emit_improvement(job, 0, 2)
        await asyncio.Event().wait()

    runtime.script("plan", endless)
    stream = client.plan_stream("toy", FRAME, FRAME, STATE)
    first = next(stream)
    assert isinstance(first, PlanImprovement)
    stream.close()  # type: ignore[attr-defined]
    runtime.wait_for(CancelRequest)


def test_a_stream_outlives_the_client_object_that_made_it(runtime: ToyRuntime) -> None:
    stream = connect(runtime.address).rollout("toy", FRAME, np.ones((2, 7)), STATE)
    gc.collect()
    assert [step.step for step in stream] == [0, 1]


def test_cancelling_a_rollout(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("rollout", never)
    stream = client.rollout("toy", FRAME, np.ones((2, 7)), STATE)
    runtime.wait_for(Submit)
    stream.cancel()
    runtime.wait_for(CancelRequest)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"model": "toi"}, NotFound, "no model 'toi' is served, did you mean 'toy'?"),
        (
            {"num_sample": 3},
            InvalidArgument,
            "toy.plan: unknown option 'num_sample', did you mean 'num_samples'?",
        ),
        ({"num_samples": 1}, InvalidArgument, "toy.plan: option 'num_samples' is 1, expected 2 to 256"),
        ({"num_samples": "many"}, InvalidArgument, "option 'num_samples' cannot be 'many'"),
        ({"num_samples": None}, InvalidArgument, "option 'num_samples' is None, leave it out"),
        ({"cost": "l3"}, InvalidArgument, "option 'cost' cannot be 'l3'"),
        ({"seed": -1}, InvalidArgument, "option 'seed' cannot be -1"),
        ({"spice": 2**63}, InvalidArgument, "option 'spice' is 9223372036854775808, whole numbers have 64 bits"),
        ({"spice": object()}, InvalidArgument, "expected a bool, a number, text or a sequence"),
        ({"frames": None}, InvalidArgument, "give either frames or latents"),
        ({"goal_frames": None}, InvalidArgument, "give either goal_frames or goal_latents"),
        ({"frames": b"GIF89a"}, InvalidArgument, "frames given as bytes must be JPEG or PNG, and these are neither"),
        ({"frames": FRAME[:40]}, InvalidArgument, "tensor 'frames' has shape"),
        (
            {"frames": FRAME.astype(np.float32)},
            InvalidArgument,
            "tensor 'frames' has dtype float32, expected uint8",
        ),
        ({"state": [0.0] * 6}, InvalidArgument, r"tensor 'state' has shape \[6\], expected \[7\]"),
        ({"state": [float("nan")] * 7}, InvalidArgument, "tensor 'state' holds NaN"),
        (
            {"budget_ms": 0},
            InvalidArgument,
            "budget_ms is 0, expected a positive number of milliseconds, at most 1000000000",
        ),
        (
            {"criticality": "control"},
            InvalidArgument,
            "criticality is 'control', expected one of planning, generation",
        ),
        (
            {"frames": np.zeros((60, SIZE, SIZE, 3), np.uint8)},
            ResourceExhausted,
            "send fewer frames, or as JPEG",
        ),
    ],
)
def test_errors_are_ours_and_the_next_plan_works(
    client: Client, options: dict[str, Any], kind: type[MstarError], sentence: str
) -> None:
    arguments = {"model": "toy", "frames": FRAME, "goal_frames": FRAME, "state": STATE}
    with pytest.raises(kind, match=sentence):
        client.plan(**{**arguments, **options})
    assert client.plan(**arguments).num_iterations == 3


def test_an_error_notes_its_request_id(client: Client, runtime: ToyRuntime) -> None:
    async def fail(job: Job) -> None:
        job.fail("RESOURCE_EXHAUSTED", "no pages")

    runtime.script("encode", fail)
    with pytest.raises(ResourceExhausted) as failure:
        client.encode("toy", FRAME)
    (submit,) = runtime.wait_for(Submit)
    assert failure.value.__notes__ == [f"request id {submit.request_id}"]
    assert failure.value.retryable


def test_all_options_arrive(client: Client, runtime: ToyRuntime) -> None:
    client.plan(
        "toy", FRAME, FRAME, STATE, pinned={2: 0.0, 3: 1.0}, cost="l2", seed=np.int64(3), spice=np.float32(0.5),
        criticality="generation",
    )  # fmt: skip
    (submit,) = runtime.wait_for(Submit)
    assert submit.params["pinned_dims"] == [2.0, 3.0]
    assert submit.params["pinned_values"] == [0.0, 1.0]
    assert (submit.params["cost"], submit.params["seed"], submit.params["spice"]) == ("l2", 3, 0.5)
    assert submit.criticality == "generation"


def test_a_call_has_a_timeout(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("encode", never)
    with pytest.raises(DeadlineExceeded):
        client.encode("toy", FRAME, timeout_s=0.1)
    runtime.wait_for(CancelRequest)


def test_no_server_is_unavailable_with_the_address() -> None:
    with connect("127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"no answer from the server at 127\.0\.0\.1:1"):
            client.models()
        with pytest.raises(Unavailable, match=r"the server at 127\.0\.0\.1:1 is not serving after 0\.05 s"):
            client.wait_until_serving(timeout_s=0.05)


def test_waiting_until_a_model_serves() -> None:
    with toy_runtime(serving=False) as runtime, connect(runtime.address) as client:
        with pytest.raises(Unavailable, match=r"model 'toy' at .* is not serving after 0\.05 s"):
            client.wait_until_serving(timeout_s=0.05, model="toy")
        waiting = threading.Thread(target=client.wait_until_serving, args=(10,))
        waiting.start()
        runtime.set_serving(True)
        waiting.join(10)
        assert not waiting.is_alive()


def test_the_runtime_is_described(client: Client, runtime: ToyRuntime) -> None:
    (model,) = client.models()
    assert (model.name, model.serving) == ("toy", True)
    description = client.describe("toy")
    frames = description.tasks["encode"].inputs[0]
    assert (frames.shape, frames.dtypes, frames.max_sizes) == (("T", SIZE, SIZE, 3), ("uint8",), {"T": 8})
    option = next(option for option in description.tasks["plan"].options if option.name == "num_samples")
    assert (option.default, option.minimum, option.maximum, option.required) == (32, 2, 256, False)
    assert description.facts == {"image_size": SIZE, "trained_positions": (0, 6)}
    assert set(description.walks) == {"encode", "rollout", "set_goal", "plan"}
    assert set(client.describe("toy", walk="encode").walks) == {"encode"}
    encode, plan = description.places
    assert (encode.node, encode.walks, encode.ranks, encode.dtype) == (
        "encode",
        ("encode", "set_goal"),
        (0, 2),
        "bfloat16",
    )
    assert (plan.node, plan.dtype) == ("plan", "float32")
    assert client.server_info().max_message_bytes == 1 << 20
    assert client.stats().processes["worker/0"] == {"pages_free": 7.0}


def test_draining(client: Client) -> None:
    assert client.drain() == 0
    with pytest.raises(Unavailable, match="this server is draining"):
        client.encode("toy", FRAME)
    (model,) = client.models()
    assert (model.serving, model.reason) == (False, "the server is draining")


def test_many_threads_share_one_client(client: Client) -> None:
    plans: list[Plan] = []
    threads = [threading.Thread(target=lambda: plans.append(client.plan("toy", FRAME, FRAME, STATE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({plan.request_id for plan in plans}) == 8
