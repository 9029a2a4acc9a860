"""A session that keeps a history: observations are commands in order, and plans and rollouts see what they left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from session_stream import Stream, frames, view
from toy_planner import MAX_FRAMES, Histories, planner_runtime
from toy_runtime import PATCHES, SIZE, WIDTH, Job, ToyRuntime

from mstar_rt.message import CancelRequest, OpenSession, Submit
from mstar_rt.protos import request_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array
from mstar_rt.protos.world_model_pb2_grpc import WorldModelStub

ACTION = tensor_from_array(np.full(7, 0.01, np.float32))
ACTIONS = tensor_from_array(np.ones((2, 7), np.float32))
GOAL = wire.Goal(frames=frames(9))
DISTANCE = wire.Rollout.OUTPUT_GOAL_DISTANCE


@pytest.fixture
def planner() -> Iterator[tuple[ToyRuntime, Histories]]:
    with planner_runtime() as running:
        yield running


@pytest.fixture
def runtime(planner: tuple[ToyRuntime, Histories]) -> ToyRuntime:
    return planner[0]


@pytest.fixture
def histories(planner: tuple[ToyRuntime, Histories]) -> Histories:
    return planner[1]


@pytest.fixture
def stream(runtime: ToyRuntime) -> Iterator[Stream]:
    with grpc.insecure_channel(runtime.address) as channel:
        opened = Stream(WorldModelStub(channel))
        yield opened
        opened.stop_sending()
        opened.call.cancel()


@pytest.fixture
def session(stream: Stream) -> Stream:
    """Opened with a window of 4, with a first observation; ids 1 and 2 are used."""
    stream.say(open=wire.OpenWorldModel(model="planner", context_window=4, window_stride=2))
    stream.say(observe=wire.Observe(context=view(1)))
    assert [stream.hear()[:2] for _ in range(2)] == [(1, "opened"), (2, "observed")]
    return stream


def observe(value: int, **fields: Any) -> wire.Observe:
    return wire.Observe(**{"context": view(value), "executed_action": ACTION, **fields})


def rollout(**fields: Any) -> wire.SessionRollout:
    return wire.SessionRollout(rollout=wire.Rollout(**{"actions": ACTIONS, **fields}))


def refusal(session: Stream, **command: Any) -> tuple[str, str]:
    message_id = session.say(**command)
    answers, kind, error = session.hear()
    assert (answers, kind) == (message_id, "error")
    return error.detail.code, error.detail.message


def hold(runtime: ToyRuntime, task: str) -> asyncio.Event:
    """Requests of `task` wait for the event before they run."""
    let_go, script = asyncio.Event(), runtime.scripts[task]

    async def wait(job: Job) -> None:
        await let_go.wait()
        await script(job)

    runtime.script(task, wait)
    return let_go


def release(runtime: ToyRuntime, let_go: asyncio.Event) -> None:
    async def set_it() -> None:
        let_go.set()

    runtime.run(set_it())


def test_an_observation_is_a_request_and_its_answer_says_what_it_took(session: Stream, runtime: ToyRuntime) -> None:
    message_id = session.say(observe=observe(2))
    answers, kind, observed = session.hear()
    assert (answers, kind) == (message_id, "observed")
    first, second = runtime.wait_for(Submit, 2)
    (opened,) = runtime.wait_for(OpenSession)
    assert {first.task, second.task} == {"observe"}
    assert {first.session_id, second.session_id} == {opened.session_id}
    assert first.params == second.params == {"context_window": 4, "window_stride": 2}
    assert "executed_action" not in first.inputs
    assert second.inputs["executed_action"].shape == (7,)
    assert (observed.num_frames, list(observed.flags), observed.request_id) == (2, ["seen"], second.request_id)
    assert 0 < observed.decode_us < observed.timing.total_us
    assert observed.timing.nodes


def test_plans_and_rollouts_see_the_history_and_send_none_of_it(session: Stream, runtime: ToyRuntime) -> None:
    session.say(plan=wire.SessionPlan(goal=GOAL, improvements=False))
    session.say(rollout=rollout())
    heard = [session.hear() for _ in range(4)]
    assert [kind for _, kind, _ in heard] == ["plan", "step", "step", "done"]
    assert heard[0][2].observation_id == 2
    _, plan, imagined = runtime.wait_for(Submit, 3)
    assert set(plan.inputs) == {"goal_frames"}
    assert set(imagined.inputs) == {"actions"}
    for submit in (plan, imagined):
        assert (submit.params["context_window"], submit.params["window_stride"]) == (4, 2)


def test_a_command_may_see_another_window_or_a_context_of_its_own(session: Stream, runtime: ToyRuntime) -> None:
    planner = wire.PlannerOptions(model_options={"context_window": request_pb2.OptionValue(integer=3)})
    session.say(plan=wire.SessionPlan(goal=GOAL, planner=planner, context=view(7), improvements=False))
    _, kind, plan = session.hear()
    assert kind == "plan"
    assert not plan.HasField("observation_id")
    submit = runtime.wait_for(Submit, 2)[1]
    assert {"frames", "state"} <= set(submit.inputs)
    assert (submit.params["context_window"], submit.params["window_stride"]) == (3, 2)


def test_observations_take_their_turn_and_none_is_dropped(
    session: Stream, runtime: ToyRuntime, histories: Histories
) -> None:
    let_go = hold(runtime, "plan")
    first = session.say(plan=wire.SessionPlan(goal=GOAL, improvements=False))
    observed = [session.say(observe=observe(value)) for value in (2, 3)]
    second = session.say(plan=wire.SessionPlan(goal=GOAL, improvements=False))
    runtime.wait_for(Submit, 2)
    assert [submit.task for submit in runtime.seen(Submit)] == ["observe", "plan"]
    release(runtime, let_go)
    heard = [session.hear() for _ in range(4)]
    assert [message_id for message_id, _, _ in heard] == [first, *observed, second]
    assert [heard[i][2].observation_id for i in (0, 3)] == [2, observed[1]]
    assert list(histories.of.values()) == [[1, 2, 3]]


def test_an_observation_that_follows_a_failed_one_is_refused(
    session: Stream, runtime: ToyRuntime, histories: Histories
) -> None:
    wrong = observe(3, context=view(3, size=SIZE // 2), follows=2)
    bad = session.say(observe=wrong)
    session.say(observe=observe(4, follows=bad))
    assert "tensor 'frames' has shape" in session.hear()[2].detail.message
    lost = session.hear()[2].detail
    assert (lost.code, lost.retryable) == ("FAILED_PRECONDITION", False)
    assert lost.message == (
        f"the observation follows {bad}, but the history is at observation 2: observe again from there"
    )
    good = session.say(observe=observe(5, follows=2))
    assert session.hear()[:2] == (good, "observed")
    assert list(histories.of.values()) == [[1, 5]]
    assert len(runtime.seen(Submit)) == 2


def test_the_first_observation_may_fail_too(stream: Stream, histories: Histories) -> None:
    stream.say(open=wire.OpenWorldModel(model="planner", context_window=2))
    assert stream.hear()[1] == "opened"
    assert refusal(stream, plan=wire.SessionPlan(goal=GOAL))[1].startswith("the session has no observation")
    bad = stream.say(observe=wire.Observe(context=view(1, size=8)))
    assert stream.hear()[1] == "error"
    assert f"follows {bad}, but the history is empty" in refusal(stream, observe=observe(2, follows=bad))[1]
    assert refusal(stream, plan=wire.SessionPlan(goal=GOAL))[1].startswith("the session has no observation")
    stream.say(observe=wire.Observe(context=view(3)))
    assert stream.hear()[1] == "observed"
    assert list(histories.of.values()) == [[3]]


def test_an_observation_can_be_taken_back_only_while_it_waits(
    session: Stream, runtime: ToyRuntime, histories: Histories
) -> None:
    """Once it runs it may be part of the history already, and the client must not think otherwise."""
    let_go = hold(runtime, "observe")
    running, waiting = session.say(observe=observe(2)), session.say(observe=observe(3))
    runtime.wait_for(Submit, 2)
    for message_id, found in ((running, False), (waiting, True)):
        cancel = session.say(cancel=wire.CancelCommand(message_id=message_id))
        answers, kind, done = session.hear()
        assert (answers, kind, done.found) == (cancel, "cancel_done", found)
    release(runtime, let_go)
    assert session.hear()[:2] == (running, "observed")
    answers, kind, error = session.hear()
    assert (answers, kind, error.detail.code) == (waiting, "error", "CANCELLED")
    assert list(histories.of.values()) == [[1, 2]]
    assert not runtime.seen(CancelRequest)


def test_an_observation_has_no_budget_but_the_sessions_criticality(stream: Stream, runtime: ToyRuntime) -> None:
    options = request_pb2.RequestOptions(budget_ms=1e-3, criticality=request_pb2.CRITICALITY_GENERATION)
    stream.say(open=wire.OpenWorldModel(model="planner", context_window=2, options=options))
    stream.say(observe=wire.Observe(context=view(1)))
    stream.say(plan=wire.SessionPlan(goal=GOAL))
    heard = [stream.hear() for _ in range(3)]
    assert [kind for _, kind, _ in heard] == ["opened", "observed", "error"]
    assert heard[2][2].detail.code == "DEADLINE_EXCEEDED"
    (submit,) = runtime.wait_for(Submit)
    assert (submit.deadline_ns, submit.criticality) == (None, "generation")


def test_what_a_history_does_not_take(session: Stream, histories: Histories) -> None:
    two = wire.Context(frames=frames(2), state=tensor_from_array(np.zeros(7, np.float32)))
    two.frames.tensor.CopyFrom(tensor_from_array(np.zeros((2, SIZE, SIZE, 3), np.uint8)))
    past = wire.Context(frames=frames(2), actions=tensor_from_array(np.zeros((0, 7), np.float32)))
    bad = [
        ({"context": two}, "tensor 'frames' has shape [2, 80, 80, 3], expected [1, 80, 80, 3]"),
        ({"context": past}, "the observation has actions of past frames, which the session keeps itself"),
        ({"context": wire.Context()}, "the context is empty"),
    ]
    for fields, sentence in bad:
        code, message = refusal(session, observe=observe(2, **fields))
        assert code == "INVALID_ARGUMENT"
        assert sentence in message
    assert list(histories.of.values()) == [[1]]


@pytest.mark.parametrize(
    ("opening", "sentence"),
    [
        ({"window_stride": 2}, "window_stride says how a context_window moves: give context_window too"),
        ({"context_window": 2, "window_stride": 3}, "window_stride is 3, expected at most context_window = 2"),
        ({"context_window": 0}, "'context_window' is 0, expected 1 to 6"),
        ({"context_window": MAX_FRAMES + 1}, "'context_window' is 7, expected 1 to 6"),
        ({"context_window": 2, "window_stride": 0}, "'window_stride' is 0, expected at least 1"),
        (
            {
                "context_window": 2,
                "planner": wire.PlannerOptions(model_options={"context_window": request_pb2.OptionValue(integer=3)}),
            },
            "option 'context_window' is given twice",
        ),
    ],
)
def test_a_window_that_cannot_be(stream: Stream, opening: dict[str, Any], sentence: str) -> None:
    stream.say(open=wire.OpenWorldModel(model="planner", **opening))
    failure: Any = stream.ends_with()
    assert failure.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in failure.details()


def test_two_sessions_have_two_histories(session: Stream, runtime: ToyRuntime, histories: Histories) -> None:
    with grpc.insecure_channel(runtime.address) as channel:
        other = Stream(WorldModelStub(channel))
        other.say(open=wire.OpenWorldModel(model="planner", context_window=3))
        other.say(observe=wire.Observe(context=view(8)))
        session.say(observe=observe(2))
        other.say(observe=observe(9))
        assert [other.hear()[1] for _ in range(3)] == ["opened", "observed", "observed"]
        assert session.hear()[1] == "observed"
        other.say(close=wire.CloseWorldModel())
        assert other.hear()[1] == "closed"
    assert sorted(histories.of.values()) == [[1, 2], [8, 9]]


# ---- outputs and goals


def test_only_what_was_asked_for_is_on_the_wire(session: Stream) -> None:
    session.say(set_goal=GOAL)
    assert session.hear()[1] == "goal_set"
    wanted = {
        wire.Rollout.OUTPUT_UNSPECIFIED: [{"latent", "pose"}, {"latent", "pose"}],
        wire.Rollout.OUTPUT_LAST_LATENT: [{"pose"}, {"latent", "pose"}],
        DISTANCE: [{"pose", "goal_distance"}, {"pose", "goal_distance"}],
    }
    for output, fields in wanted.items():
        session.say(rollout=rollout(output=output))
        *steps, done = [session.hear()[2] for _ in range(3)]
        present = [{name for name in ("latent", "pose", "goal_distance") if step.HasField(name)} for step in steps]
        assert (present, done.num_steps) == (fields, 2)
    assert array_from_tensor(steps[1].goal_distance, "goal_distance").shape == ()
    batch = tensor_from_array(np.ones((3, 2, 7), np.float32))
    session.say(rollout=rollout(actions=batch, output=DISTANCE))
    steps = [session.hear()[2] for _ in range(3)][:2]
    np.testing.assert_array_equal(array_from_tensor(steps[1].goal_distance, "goal_distance"), np.full(3, 1.5))


def test_a_distance_needs_a_goal_and_a_goal_needs_a_distance(session: Stream, runtime: ToyRuntime) -> None:
    code, message = refusal(session, rollout=rollout(output=DISTANCE))
    assert (code, message) == (
        "FAILED_PRECONDITION", "the session has no goal: send `set_goal` first, or a goal with the rollout",
    )  # fmt: skip
    code, message = refusal(session, rollout=rollout(goal=GOAL))
    assert (code, message) == (
        "INVALID_ARGUMENT",
        "the rollout has a goal, which only output goal_distance compares it with: "
        "ask for that output, or leave the goal unset",
    )
    one_call = wire.RolloutRequest(
        model="planner", context=view(), rollout=wire.Rollout(actions=ACTIONS, output=DISTANCE)
    )
    with grpc.insecure_channel(runtime.address) as channel, pytest.raises(grpc.RpcError) as failure:
        list(WorldModelStub(channel).Rollout(one_call))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "asks for goal_distance without a goal" in failure.value.details()
    session.say(rollout=rollout(output=DISTANCE, goal=GOAL))
    assert [session.hear()[1] for _ in range(3)] == ["step", "step", "done"]


def test_goals_come_as_several_with_use_and_weights(session: Stream, runtime: ToyRuntime) -> None:
    one = tensor_from_array(np.zeros((PATCHES, WIDTH), np.float32))
    several = tensor_from_array(np.zeros((2, PATCHES, WIDTH), np.float32))
    weights = tensor_from_array(np.array([1, 2], np.float32))
    session.say(set_goal=wire.Goal(latents=one))
    session.say(set_goal=wire.Goal(latents=several, use=wire.Goal.USE_NEAREST, weights=weights))
    session.say(plan=wire.SessionPlan(goal=wire.Goal(latents=several, use=wire.Goal.USE_PER_STEP), improvements=False))
    session.say(rollout=rollout(output=DISTANCE, goal=wire.Goal(latents=one)))
    for _ in range(6):
        assert session.hear()[1] != "error"
    _, kept_one, kept, plan, imagined = runtime.wait_for(Submit, 5)
    assert kept_one.inputs["goal_latents"].shape == imagined.inputs["goal_latents"].shape == (1, PATCHES, WIDTH)
    assert kept.inputs["goal_latents"].shape == (2, PATCHES, WIDTH)
    assert kept.inputs["goal_weights"].shape == (2,)
    assert [submit.params["goal_use"] for submit in (kept_one, kept, plan)] == ["last", "nearest", "per_step"]
    assert imagined.params["output"] == "goal_distance"


def test_the_spread_of_the_elites_is_in_improvements_and_plan(session: Stream) -> None:
    session.say(plan=wire.SessionPlan(goal=GOAL))
    first, second, plan = [session.hear()[2] for _ in range(3)]
    for answer, value in ((first, 1), (second, 2), (plan, 2)):
        np.testing.assert_array_equal(array_from_tensor(answer.elite_std, "elite_std"), np.full((3, 4), value))
        assert not getattr(answer, "extra", {})


def test_a_plan_without_time_for_an_iteration_has_none(session: Stream, runtime: ToyRuntime) -> None:
    async def start_only(job: Job) -> None:
        job.emit("plan_actions", np.zeros((3, 7), np.float32), (0,))
        job.emit("plan_cost", np.array([3, 3], np.float32), (0,))
        job.emit("elite_std", np.zeros((3, 4), np.float32), (0,))
        job.finish(flags=("deadline", "not_searched"))

    runtime.script("plan", start_only)
    session.say(plan=wire.SessionPlan(goal=GOAL, improvements=False))
    plan = session.hear()[2]
    assert (plan.num_iterations, plan.best_cost, list(plan.flags)) == (0, 3.0, ["deadline", "not_searched"])
