"""WorldModel.Session over real gRPC: the slot for observations, order, cancelling; its end frees everything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from session_stream import Stream, frames, view
from toy_runtime import Job, ToyRuntime, emit_improvement, never

from mstar_rt.message import CancelRequest, CloseSession, OpenSession, Submit
from mstar_rt.protos import request_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array


@pytest.fixture
def stream(world_model: Any) -> Iterator[Stream]:
    opened = Stream(world_model)
    yield opened
    opened.stop_sending()
    opened.call.cancel()


@pytest.fixture
def session(stream: Stream) -> Stream:
    """Opened, with a goal and an observation; ids 1 to 3 are used."""
    stream.say(open=wire.OpenWorldModel(model="toy"))
    stream.say(set_goal=wire.Goal(frames=frames(9)))
    stream.say(observe=wire.Observe(context=view(1)))
    heard = sorted(stream.hear()[:2] for _ in range(3))
    assert heard == [(1, "opened"), (2, "goal_set"), (3, "observed")]
    return stream


def hold_plans(runtime: ToyRuntime) -> asyncio.Event:
    """Plans emit one improvement and finish when the event is set."""
    let_go = asyncio.Event()

    async def wait(job: Job) -> None:
        emit_improvement(job, 0, 2)
        await let_go.wait()
        job.finish()

    runtime.script("plan", wait)
    return let_go


def release(runtime: ToyRuntime, let_go: asyncio.Event) -> None:
    async def set_it() -> None:
        let_go.set()

    runtime.run(set_it())


def test_a_plan_uses_the_goal_and_the_newest_observation(session: Stream, runtime: ToyRuntime) -> None:
    seen: list[int] = []
    plan_script = runtime.scripts["plan"]

    async def look(job: Job) -> None:
        seen.append(int(job.inputs["frames"].flat[0]))
        await plan_script(job)

    runtime.script("plan", look)
    plan_id = session.say(plan=wire.SessionPlan(planner=wire.PlannerOptions(num_iterations=2)))
    answers = [session.hear() for _ in range(3)]
    assert [(answers_id, kind) for answers_id, kind, _ in answers] == [
        (plan_id, "improvement"), (plan_id, "improvement"), (plan_id, "plan"),
    ]  # fmt: skip
    assert answers[-1][2].observation_id == 3
    assert seen == [1]
    (opened,) = runtime.wait_for(OpenSession)
    set_goal, plan = runtime.wait_for(Submit, 2)
    assert {set_goal.session_id, plan.session_id} == {opened.session_id}
    assert "goal_frames" in set_goal.inputs
    assert "goal_frames" not in plan.inputs


def test_closing_answers_what_was_asked_before_and_frees_the_session(session: Stream, runtime: ToyRuntime) -> None:
    let_go = hold_plans(runtime)
    plan_id = session.say(plan=wire.SessionPlan(improvements=False))
    close_id = session.say(close=wire.CloseWorldModel())
    runtime.wait_for(Submit, 2)
    release(runtime, let_go)
    assert [session.hear()[:2] for _ in range(2)] == [(plan_id, "plan"), (close_id, "closed")]
    (opened,), (closed,) = runtime.wait_for(OpenSession), runtime.wait_for(CloseSession)
    assert closed.session_id == opened.session_id
    with pytest.raises(StopIteration):
        next(session.call)
    assert session.call.code() == grpc.StatusCode.OK
    assert not runtime.seen(CancelRequest)


def test_just_stopping_to_send_is_an_orderly_end(session: Stream, runtime: ToyRuntime) -> None:
    plan_id = session.say(plan=wire.SessionPlan(improvements=False))
    session.stop_sending()
    assert session.hear()[:2] == (plan_id, "plan")
    runtime.wait_for(CloseSession)


def test_a_client_that_goes_away_cancels_the_plan_and_frees_the_session(session: Stream, runtime: ToyRuntime) -> None:
    runtime.script("plan", never)
    session.say(plan=wire.SessionPlan())
    _, submit = runtime.wait_for(Submit, 2)
    session.call.cancel()
    (cancel,) = runtime.wait_for(CancelRequest)
    assert cancel.request_id == submit.request_id
    (closed,) = runtime.wait_for(CloseSession)
    kinds = [type(message) for message in runtime.seen(object)]
    assert kinds.index(CancelRequest) < kinds.index(CloseSession)
    assert closed.session_id == submit.session_id


def test_newest_observation_wins_and_the_dropped_one_is_reported(session: Stream, runtime: ToyRuntime) -> None:
    """While a plan runs two observations come in: the next plan sees the second, the first is reported dropped."""
    let_go = hold_plans(runtime)
    first_plan = session.say(plan=wire.SessionPlan(improvements=False))
    runtime.wait_for(Submit, 2)
    first = session.say(observe=wire.Observe(context=view(4)))
    second = session.say(observe=wire.Observe(context=view(5)))
    second_plan = session.say(plan=wire.SessionPlan(improvements=False))
    assert session.hear()[:2] == (first, "observed")
    answers, kind, event = session.hear()
    assert (answers, kind, event.kind, event.replaced_by) == (
        first, "event", wire.SessionEvent.KIND_OBSERVATION_DROPPED, second,
    )  # fmt: skip
    assert session.hear()[:2] == (second, "observed")
    release(runtime, let_go)
    plans = [session.hear() for _ in range(2)]
    assert [(answers, plan.observation_id) for answers, _, plan in plans] == [
        (first_plan, 3),
        (second_plan, second),
    ]


def test_an_observation_that_was_used_is_replaced_without_an_event(session: Stream) -> None:
    session.say(plan=wire.SessionPlan(improvements=False))
    assert session.hear()[1] == "plan"
    session.say(observe=wire.Observe(context=view(2)))
    assert session.hear()[1] == "observed"
    session.say(plan=wire.SessionPlan(improvements=False))
    assert session.hear()[1] == "plan"


def test_a_rollout_from_the_newest_observation(session: Stream, runtime: ToyRuntime) -> None:
    actions = tensor_from_array(np.ones((2, 7), np.float32))
    rollout_id = session.say(rollout=wire.SessionRollout(rollout=wire.Rollout(actions=actions)))
    answers = [session.hear() for _ in range(3)]
    assert [answer[:2] for answer in answers] == [
        (rollout_id, "step"),
        (rollout_id, "step"),
        (rollout_id, "done"),
    ]
    np.testing.assert_array_equal(array_from_tensor(answers[1][2].pose, "pose"), np.full(7, 2, np.float32))


def test_a_command_can_be_taken_back_while_it_runs_and_while_it_waits(session: Stream, runtime: ToyRuntime) -> None:
    runtime.script("plan", never)
    running = session.say(plan=wire.SessionPlan())
    waiting = session.say(plan=wire.SessionPlan())
    runtime.wait_for(Submit, 2)
    cancel_waiting = session.say(cancel=wire.CancelCommand(message_id=waiting))
    answers, kind, done = session.hear()
    assert (answers, kind, done.found) == (cancel_waiting, "cancel_done", True)
    cancel_running = session.say(cancel=wire.CancelCommand(message_id=running))
    heard = {session.hear()[:2] for _ in range(3)}
    assert heard == {(cancel_running, "cancel_done"), (running, "error"), (waiting, "error")}
    assert len(runtime.wait_for(CancelRequest)) == 1
    again = session.say(cancel=wire.CancelCommand(message_id=running))
    answers, kind, done = session.hear()
    assert (answers, kind, done.found) == (again, "cancel_done", False)


def test_commands_that_are_taken_back_at_once_have_an_answer_each(session: Stream, runtime: ToyRuntime) -> None:
    """The server reads a plan and its cancel together, at any moment of the plan before it."""
    runtime.script("plan", never)
    for _ in range(30):
        plan = session.say(plan=wire.SessionPlan())
        cancel = session.say(cancel=wire.CancelCommand(message_id=plan))
        heard = {session.hear()[:2] for _ in range(2)}
        assert heard == {(plan, "error"), (cancel, "cancel_done")}
    closing = session.say(close=wire.CloseWorldModel())
    assert session.hear()[:2] == (closing, "closed")


def test_a_failed_command_leaves_the_session_usable(session: Stream, runtime: ToyRuntime) -> None:
    bad = [
        ({"observe": wire.Observe(context=view(size=64))}, "tensor 'frames' has shape [1, 64, 64, 3]"),
        ({"observe": wire.Observe()}, "the context is empty"),
        ({"observe": wire.Observe(context=view(), follows=3)}, "the observation has follows, but this session keeps"),
        (
            {"observe": wire.Observe(context=view(), executed_action=tensor_from_array(np.zeros(7, np.float32)))},
            "the observation has executed_action, but this session keeps no history: open one with context_window",
        ),
        (
            {"plan": wire.SessionPlan(planner=wire.PlannerOptions(num_samples=1))},
            "'num_samples' is 1, expected 2 to 256",
        ),
        ({"plan": wire.SessionPlan(goal=wire.Goal())}, "the goal is empty"),
        ({"plan": wire.SessionPlan(options=request_pb2.RequestOptions(budget_ms=-1))}, "budget_ms is -1"),
        ({"set_goal": wire.Goal(frames=frames(size=8))}, "tensor 'goal_frames' has shape [1, 8, 8, 3]"),
        ({"rollout": wire.SessionRollout()}, "the rollout has no actions"),
    ]  # fmt: skip
    for command, sentence in bad:
        message_id = session.say(**command)
        answers, kind, error = session.hear()
        assert (answers, kind) == (message_id, "error")
        assert sentence in error.detail.message
        assert error.detail.request_id
    session.say(plan=wire.SessionPlan(improvements=False))
    _, kind, plan = session.hear()
    assert (kind, plan.observation_id) == ("plan", 3)


def test_a_failure_of_the_runtime_is_the_answer_of_its_command(session: Stream, runtime: ToyRuntime) -> None:
    async def fail(job: Job) -> None:
        job.fail("RESOURCE_EXHAUSTED", "no pages: 3 free, 8 needed")

    runtime.script("plan", fail)
    session.say(plan=wire.SessionPlan())
    _, kind, error = session.hear()
    assert (kind, error.detail.code, error.detail.retryable) == ("error", "RESOURCE_EXHAUSTED", True)


def test_a_plan_needs_a_goal_and_an_observation(stream: Stream) -> None:
    stream.say(open=wire.OpenWorldModel(model="toy"))
    stream.say(plan=wire.SessionPlan())
    assert stream.hear()[1] == "opened"
    assert "no observation: send `observe` first" in stream.hear()[2].detail.message
    stream.say(plan=wire.SessionPlan(context=view()))
    error = stream.hear()[2]
    assert "no goal: send `set_goal` first" in error.detail.message
    assert error.detail.code == "FAILED_PRECONDITION"
    stream.say(plan=wire.SessionPlan(context=view(), goal=wire.Goal(frames=frames()), improvements=False))
    _, kind, plan = stream.hear()
    assert kind == "plan"
    assert not plan.HasField("observation_id")


def test_defaults_of_the_session_hold_unless_a_plan_says_otherwise(stream: Stream, runtime: ToyRuntime) -> None:
    defaults = wire.PlannerOptions(num_samples=16, num_iterations=2, warm_start=True)
    options = request_pb2.RequestOptions(budget_ms=1000, criticality=request_pb2.CRITICALITY_GENERATION)
    stream.say(open=wire.OpenWorldModel(model="toy", planner=defaults, options=options))
    stream.say(
        plan=wire.SessionPlan(
            planner=wire.PlannerOptions(num_iterations=1),
            options=request_pb2.RequestOptions(budget_ms=9000),
            context=view(),
            goal=wire.Goal(frames=frames()),
            improvements=False,
        )
    )
    assert [stream.hear()[1] for _ in range(2)] == ["opened", "plan"]
    (submit,) = runtime.wait_for(Submit)
    assert submit.params["num_samples"] == 16
    assert submit.params["num_iterations"] == 1
    assert submit.params["warm_start"] is True
    assert submit.criticality == "generation"
    assert submit.deadline_ns is not None


def test_a_plan_whose_budget_passed_in_the_queue_is_not_started(session: Stream, runtime: ToyRuntime) -> None:
    let_go = hold_plans(runtime)
    session.say(plan=wire.SessionPlan(improvements=False))
    runtime.wait_for(Submit, 2)
    late = session.say(plan=wire.SessionPlan(options=request_pb2.RequestOptions(budget_ms=1e-3)))
    session.say(observe=wire.Observe(context=view()))
    assert session.hear()[1] == "observed"
    release(runtime, let_go)
    assert session.hear()[1] == "plan"
    answers, kind, error = session.hear()
    assert (answers, kind, error.detail.code) == (late, "error", "DEADLINE_EXCEEDED")
    assert len(runtime.seen(Submit)) == 2


def test_too_many_waiting_commands_are_refused(session: Stream, runtime: ToyRuntime) -> None:
    runtime.script("plan", never)
    ids = [session.say(plan=wire.SessionPlan()) for _ in range(18)]
    answers, kind, error = session.hear()
    assert (answers, kind, error.detail.code) == (ids[-1], "error", "RESOURCE_EXHAUSTED")
    assert error.detail.message == "17 commands of this session wait, at most 16 may"


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        ({"close": wire.CloseWorldModel()}, "FAILED_PRECONDITION", "the first message of a session must be `open`"),
        ({"open": wire.OpenWorldModel(model="toi")}, "NOT_FOUND", "no model 'toi' is served, did you mean 'toy'?"),
        (
            {"open": wire.OpenWorldModel(model="toy", context_window=3)}, "INVALID_ARGUMENT",
            "model 'toy' keeps no history, so it takes no context_window: send the frames of the window with each",
        ),
        (
            {"open": wire.OpenWorldModel(model="toy", planner=wire.PlannerOptions(num_samples=1))},
            "INVALID_ARGUMENT", "'num_samples' is 1",
        ),
        (
            {"open": wire.OpenWorldModel(model="toy", planner=wire.PlannerOptions(temperature=1))},
            "INVALID_ARGUMENT", "unknown option 'temperature'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_open_a_session(
    stream: Stream, runtime: ToyRuntime, message: dict[str, Any], code: str, sentence: str
) -> None:
    stream.say(**message)
    failure: Any = stream.ends_with()
    assert failure.code() == grpc.StatusCode[code]
    assert sentence in failure.details()
    assert not runtime.seen(OpenSession)


def test_a_session_that_the_conductor_refuses(stream: Stream, runtime: ToyRuntime) -> None:
    runtime.refuse_session = ("RESOURCE_EXHAUSTED", "8 sessions are open, at most 8 may be")
    stream.say(open=wire.OpenWorldModel(model="toy"))
    failure: Any = stream.ends_with()
    assert failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failure.details() == "8 sessions are open, at most 8 may be"


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        ({"open": wire.OpenWorldModel(model="toy")}, "FAILED_PRECONDITION", "the session is open already"),
        ({"message_id": 3, "plan": wire.SessionPlan()}, "INVALID_ARGUMENT", "message_id 3 came after 3"),
        ({}, "INVALID_ARGUMENT", "message 4 of the session holds no command"),
    ],
)
def test_a_breach_of_protocol_ends_the_stream_and_frees_the_session(
    session: Stream, runtime: ToyRuntime, message: dict[str, Any], code: str, sentence: str
) -> None:
    session.say(**message)
    failure: Any = session.ends_with()
    assert failure.code() == grpc.StatusCode[code]
    assert sentence in failure.details()
    runtime.wait_for(CloseSession)


def test_two_sessions_do_not_see_each_other(session: Stream, world_model: Any) -> None:
    other = Stream(world_model)
    other.say(open=wire.OpenWorldModel(model="toy"))
    other.say(plan=wire.SessionPlan())
    assert other.hear()[1] == "opened"
    assert "no observation" in other.hear()[2].detail.message
    other.say(close=wire.CloseWorldModel())
    assert other.hear()[1] == "closed"
    session.say(plan=wire.SessionPlan(improvements=False))
    assert session.hear()[1] == "plan"


def test_plans_of_a_session_draw_different_noise_unless_a_seed_is_given(session: Stream, runtime: ToyRuntime) -> None:
    seeded = wire.SessionPlan(planner=wire.PlannerOptions(seed=77))
    first, second, _ = [session.say(plan=plan) for plan in (wire.SessionPlan(), wire.SessionPlan(), seeded)]
    last = session.say(2**63 + 5, plan=wire.SessionPlan())
    submits = runtime.wait_for(Submit, 5)[1:]
    assert [submit.params["seed"] for submit in submits] == [first, second, 77, 5]
    while session.hear()[:2] != (last, "plan"):
        pass


def test_the_seed_of_a_session_holds_for_all_its_plans(stream: Stream, runtime: ToyRuntime) -> None:
    stream.say(open=wire.OpenWorldModel(model="toy", planner=wire.PlannerOptions(seed=9)))
    stream.say(observe=wire.Observe(context=view()))
    for _ in range(2):
        stream.say(plan=wire.SessionPlan(goal=wire.Goal(frames=frames())))
    closing = stream.say(close=wire.CloseWorldModel())
    while stream.hear()[:2] != (closing, "closed"):
        pass
    assert [submit.params["seed"] for submit in runtime.wait_for(Submit, 2)] == [9, 9]


def test_a_failed_command_is_logged_under_its_request_id(session: Stream, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mstar_rt.server"):
        session.say(plan=wire.SessionPlan(planner=wire.PlannerOptions(num_samples=1)))
        _, _, error = session.hear()
    (record,) = [record for record in caplog.records if error.detail.request_id in record.message]
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.message == f"request {error.detail.request_id} failed: INVALID_ARGUMENT: {error.detail.message}"
