"""Encode, Rollout and Plan over real gRPC: answers, deadlines, cancelling, failures."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import numpy as np
import pytest
from toy_runtime import MAX_HORIZON, PATCHES, SIZE, WIDTH, Job, ToyRuntime, emit_improvement, never

from mstar_rt.message import CancelRequest, Submit
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array


def frames(count: int = 1, value: int = 7) -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=tensor_from_array(np.full((count, SIZE, SIZE, 3), value, np.uint8)))


def context(**fields: Any) -> wire.Context:
    return wire.Context(**{"frames": frames(), "state": tensor_from_array(np.zeros(7, np.float32)), **fields})


def encode_request(**fields: Any) -> wire.EncodeRequest:
    return wire.EncodeRequest(**{"model": "toy", "frames": frames(), **fields})


def plan_request(**fields: Any) -> wire.PlanRequest:
    return wire.PlanRequest(**{"model": "toy", "context": context(), "goal": wire.Goal(frames=frames()), **fields})


def rollout_request(actions: np.ndarray, **fields: Any) -> wire.RolloutRequest:
    rollout = wire.Rollout(actions=tensor_from_array(actions))
    return wire.RolloutRequest(**{"model": "toy", "context": context(), "rollout": rollout, **fields})


def metadata(call: Any) -> dict[str, Any]:
    return dict(call.trailing_metadata())


def test_encode_gives_latents_timing_and_the_request_id(world_model: Any, runtime: ToyRuntime) -> None:
    answer, call = world_model.Encode.with_call(encode_request(frames=frames(2, value=9)))
    latents = array_from_tensor(answer.latents, "latents")
    assert latents.shape == (2, PATCHES, WIDTH)
    assert (latents == 9).all()
    (submit,) = runtime.wait_for(Submit)
    assert answer.request_id == submit.request_id == metadata(call)["mstar-request-id"]
    timing = answer.timing
    assert [(n.name, n.num_steps, n.queue_us, n.run_us, n.batched_with) for n in timing.nodes] == [
        ("encoder", 2, 3.0, 40.0, 1)
    ]
    assert [(loop.name, loop.num_iterations, loop.run_us) for loop in timing.loops] == [("cem", 1, 50.0)]
    assert (timing.queue_us, timing.run_us) == (3.0, 40.0)
    parts_us = (timing.decode_us, timing.queue_us, timing.run_us, timing.transport_us, timing.encode_us)
    assert min(parts_us) > 0
    assert sum(parts_us) <= timing.total_us
    assert timing.runtime_us == 100.0
    assert 0 < timing.decode_us < timing.total_us
    assert 0 < timing.encode_us < timing.total_us


def test_a_plain_rollout_loses_the_batch_dimension_again(world_model: Any, runtime: ToyRuntime) -> None:
    actions = np.arange(14, dtype=np.float32).reshape(2, 7)
    *steps, last = list(world_model.Rollout(rollout_request(actions)))
    (submit,) = runtime.wait_for(Submit)
    assert submit.inputs["actions"].shape == (1, 2, 7)
    assert submit.params["rollout_horizon"] == 2
    assert [answer.step.step for answer in steps] == [0, 1]
    np.testing.assert_array_equal(array_from_tensor(steps[1].step.pose, "pose"), actions.sum(axis=0))
    latent = array_from_tensor(steps[1].step.latent, "latent")
    assert latent.shape == (PATCHES, WIDTH)
    assert (latent == actions.sum()).all()
    assert last.done.num_steps == 2
    assert not last.done.flags


def test_a_batch_of_rollouts_keeps_it_and_flags_are_passed_on(world_model: Any) -> None:
    actions = np.ones((3, MAX_HORIZON, 7), np.float32)
    *steps, last = list(world_model.Rollout(rollout_request(actions)))
    assert array_from_tensor(steps[0].step.latent, "latent").shape == (3, PATCHES, WIDTH)
    assert array_from_tensor(steps[0].step.pose, "pose").shape == (3, 7)
    assert list(last.done.flags) == ["beyond_trained_positions"]


def test_steps_are_sent_as_they_are_made(world_model: Any, runtime: ToyRuntime) -> None:
    """The second step is only computed once the client has had the first."""
    proceed = asyncio.Event()

    async def one_then_wait(job: Job) -> None:
        for h in range(2):
            job.emit("latent", np.full((1, PATCHES, WIDTH), h, np.float32), (h,))
            job.emit("pose", np.zeros((1, 7), np.float32), (h,))
            if h == 0:
                await proceed.wait()
        job.finish()

    async def let_it_go_on() -> None:
        proceed.set()

    runtime.script("rollout", one_then_wait)
    call = world_model.Rollout(rollout_request(np.zeros((2, 7), np.float32)))
    assert next(call).step.step == 0
    runtime.run(let_it_go_on())
    assert [answer.WhichOneof("answer") for answer in call] == ["step", "done"]


def test_the_end_may_arrive_before_the_last_emission(world_model: Any, runtime: ToyRuntime) -> None:
    async def end_first(job: Job) -> None:
        job._num_emitted = 1
        job.finish()
        job._num_emitted = 0
        job.emit("latents", np.zeros((1, PATCHES, WIDTH), np.float32))

    runtime.script("encode", end_first)
    assert world_model.Encode(encode_request()).latents.shape == [1, PATCHES, WIDTH]


def test_a_plan_streams_improvements_and_ends_with_the_plan(world_model: Any, runtime: ToyRuntime) -> None:
    planner = wire.PlannerOptions(
        num_iterations=2, rollout_horizon=3, seed=5, cost=wire.PlannerOptions.COST_L2,
        pinned=[wire.PinnedDimension(dimension=2, value=0.5)],
    )  # fmt: skip
    planner.model_options["spice"].number = 0.25
    *improvements, last = list(world_model.Plan(plan_request(planner=planner)))
    (submit,) = runtime.wait_for(Submit)
    assert submit.params == {
        "rollout_horizon": 3, "num_samples": 32, "num_iterations": 2, "seed": 5, "warm_start": False, "cost": "l2",
        "pinned_dims": [2.0], "pinned_values": [0.5], "spice": 0.25,
    }  # fmt: skip
    assert [answer.improvement.iteration for answer in improvements] == [0, 1]
    assert [answer.improvement.best_cost for answer in improvements] == [1.0, 0.5]
    plan = last.plan
    np.testing.assert_array_equal(array_from_tensor(plan.actions, "actions"), np.full((3, 7), 2, np.float32))
    assert (plan.best_cost, plan.elite_mean_cost, plan.num_iterations) == (0.5, 1.0, 2)
    assert plan.request_id == submit.request_id


def test_a_plan_without_improvements(world_model: Any) -> None:
    answers = list(world_model.Plan(plan_request(improvements=False)))
    assert [answer.WhichOneof("answer") for answer in answers] == ["plan"]
    assert answers[0].plan.num_iterations == 3


def test_an_anytime_plan_is_what_it_was_at_the_deadline(world_model: Any, runtime: ToyRuntime) -> None:
    async def one_iteration(job: Job) -> None:
        emit_improvement(job, 0, 2)
        job.finish(flags=("deadline",))

    runtime.script("plan", one_iteration)
    before_ns = time.monotonic_ns()
    request = plan_request(options=request_pb2.RequestOptions(budget_ms=250))
    last = list(world_model.Plan(request))[-1].plan
    assert list(last.flags) == ["deadline"]
    assert last.num_iterations == 1
    (submit,) = runtime.wait_for(Submit)
    assert before_ns + 250e6 <= submit.deadline_ns <= time.monotonic_ns() + 250e6


def test_a_plan_that_has_nothing_at_the_deadline_says_so(world_model: Any, runtime: ToyRuntime) -> None:
    async def nothing(job: Job) -> None:
        job.finish(flags=("deadline",))

    runtime.script("plan", nothing)
    with pytest.raises(grpc.RpcError, match="before the first iteration") as failure:
        list(world_model.Plan(plan_request()))
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_deadline_of_the_call_bounds_too(world_model: Any, runtime: ToyRuntime) -> None:
    world_model.Encode(encode_request(options=request_pb2.RequestOptions(budget_ms=3_600_000)), timeout=60)
    world_model.Encode(encode_request())
    with_deadline, without = runtime.wait_for(Submit, 2)
    assert with_deadline.deadline_ns < time.monotonic_ns() + 61e9
    assert without.deadline_ns is None


def test_criticality_is_the_tasks_unless_lowered(world_model: Any, runtime: ToyRuntime) -> None:
    world_model.Encode(encode_request())
    lower = request_pb2.RequestOptions(criticality=request_pb2.CRITICALITY_GENERATION)
    world_model.Encode(encode_request(options=lower))
    assert [submit.criticality for submit in runtime.wait_for(Submit, 2)] == ["planning", "generation"]


def test_cancelling_tells_the_conductor_and_frees_everything(world_model: Any, runtime: ToyRuntime) -> None:
    """The fixture checks that neither side holds memory afterwards, unread emissions included."""
    runtime.script("rollout", never)
    call = world_model.Rollout(rollout_request(np.zeros((2, 7), np.float32)))
    (submit,) = runtime.wait_for(Submit)
    call.cancel()
    (cancel,) = runtime.wait_for(CancelRequest)
    assert cancel.request_id == submit.request_id


def test_a_client_that_disconnects_cancels_its_requests(runtime: ToyRuntime) -> None:
    from mstar_rt.protos.world_model_pb2_grpc import WorldModelStub

    runtime.script("plan", never)
    with grpc.insecure_channel(runtime.address) as channel:
        call = WorldModelStub(channel).Plan(plan_request())
        (submit,) = runtime.wait_for(Submit)
        assert call.is_active()
    assert [cancel.request_id for cancel in runtime.wait_for(CancelRequest)] == [submit.request_id]


def test_a_call_past_its_deadline_is_cancelled(world_model: Any, runtime: ToyRuntime) -> None:
    runtime.script("encode", never)
    with pytest.raises(grpc.RpcError) as failure:
        world_model.Encode(encode_request(), timeout=0.2)
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    runtime.wait_for(CancelRequest)


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"])
def test_a_failure_reaches_the_client_with_its_details(world_model: Any, runtime: ToyRuntime, code: str) -> None:
    async def fail(job: Job) -> None:
        job.emit("latent", np.zeros((1, PATCHES, WIDTH), np.float32), (0,))
        job.fail(code, "no pages: 3 free, 8 needed")

    runtime.script("rollout", fail)
    with pytest.raises(grpc.RpcError) as failure:
        list(world_model.Rollout(rollout_request(np.zeros((2, 7), np.float32))))
    assert failure.value.code() == grpc.StatusCode[code]
    assert failure.value.details() == "no pages: 3 free, 8 needed"
    detail = request_pb2.ErrorDetail.FromString(metadata(failure.value)["mstar-error-bin"])
    (submit,) = runtime.wait_for(Submit)
    assert detail.request_id == metadata(failure.value)["mstar-request-id"] == submit.request_id
    assert (detail.code, detail.retryable) == (code, code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE"))


def test_a_bug_of_ours_is_internal_and_its_traceback_stays_in_the_log(
    world_model: Any, runtime: ToyRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("/home/someone/secret.py")

    with monkeypatch.context() as patch:
        patch.setattr(runtime.dispatcher, "submit", broken)
        with pytest.raises(grpc.RpcError) as failure:
            world_model.Encode(encode_request())
    assert failure.value.code() == grpc.StatusCode.INTERNAL
    request_id = metadata(failure.value)["mstar-request-id"]
    assert request_id in failure.value.details()
    assert "secret" not in failure.value.details()
    (record,) = [record for record in caplog.records if record.name == "mstar_rt.server.answering"]
    assert request_id in record.getMessage()
    assert record.exc_info is not None
    assert world_model.Encode(encode_request()).request_id


def test_the_planner_needs_a_session_for_a_warm_start(world_model: Any) -> None:
    with pytest.raises(grpc.RpcError, match="warm_start needs the last plan") as failure:
        list(world_model.Plan(plan_request(planner=wire.PlannerOptions(warm_start=True))))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
