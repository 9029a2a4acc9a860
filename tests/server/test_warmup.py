"""Warm-up: every task, where the conductor says, in the right order, before requests are let in there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from toy_policy import toy_policy

from mstar_rt.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MstarError,
    ResourceExhausted,
    Unavailable,
)  # fmt: skip
from mstar_rt.graph import GraphNode, Sequential, Walk, WalkGraph
from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Finished,
    Message,
    NodeTime,
    OpenSession,
    RequestFailed,
    ServingState,
    SessionOpened,
    Submit,
    Warmed,
    WarmUp,
)  # fmt: skip
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.shared_runs import MAX_S, MAX_STEP_S, Alone, run_alone, run_together
from mstar_rt.server.warmup import WarmUps, needed_params, usual_request, warm_up, zeros
from mstar_rt.transport import InProcessHub, InProcessPlanes

FINISHED = Finished("r", 0, {}, {}, {}, 1.0)
X = TensorSpec("x", ("N", 2), ("float32",), "numbers")
MAYBE = TensorSpec("maybe", ("N",), ("int64",), "numbers", optional=True)
Y = TensorSpec("y", ("N", 2), ("float32",), "numbers")
KEEP = GraphNode("keep", ("x", "maybe"), ("kept",))
RECALL = GraphNode("recall", ("kept",), ("y",))
MODEL = ServedModel(
    "toy", "toy", "A model for tests.",
    WalkGraph(
        nodes=(KEEP, RECALL),
        walks=(Walk("keep", Sequential(KEEP), persist=("kept",)), Walk("recall", Sequential(RECALL), emit=("y",))),
    ),
    tasks=(
        TaskSpec(
            "recall", "needs what keep persists", (), (Y,), ("recall",), session_inputs=(("kept", "run keep first"),)
        ),
        TaskSpec("keep", "persists", (X, MAYBE), (), ("keep",)),
    ),
    nodes_factory="nowhere:nodes",
)  # fmt: skip


class Conductor:
    """Answers by hand-written rules. `refuse` maps a task to what it fails with; `recall` needs `keep` before it."""

    def __init__(self) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        self.endpoint = hub.endpoint("conductor")
        self.plane = planes.plane(hub.endpoint("worker/0"))
        server = hub.endpoint("server")
        self.server_plane = planes.plane(server)
        readers = dict.fromkeys(("x", "image_top", "image_wrist", "state"), ("worker/0",))
        self.dispatcher = Dispatcher(server, self.server_plane, {"toy": ("worker/0",)}, lambda *_: readers)
        self.cannot_start: list[MstarError] = []
        self.warm_ups = WarmUps({"toy": MODEL}, self.dispatcher, self.cannot_start.append, pauses_s=(0.0, 0.0))
        self.refuse: dict[str, MstarError] = {}
        self.refuse_measured: MstarError | None = None
        self.silent: set[str] = set()
        self.seen: list[Message] = []
        self.news = asyncio.Event()
        self.tasks = [asyncio.create_task(self.dispatcher.run()), asyncio.create_task(self._run())]

    async def _run(self) -> None:
        while True:
            for envelope in await self.endpoint.receive_async():
                self.seen.append(envelope.message)
                self._answer(envelope.message)
                self.news.set()

    def _answer(self, message: Message) -> None:
        if isinstance(message, OpenSession):
            self.endpoint.send("server", SessionOpened(message.session_id))
        elif isinstance(message, Submit) and message.task not in self.silent:
            error = self.refuse.get(message.task) or (None if message.is_cold else self.refuse_measured)
            if message.task == "recall" and not self._kept(message.session_id):
                error = FailedPrecondition("run keep first")
            if error is None:
                self.endpoint.send("server", Finished(message.request_id, 0, {}, {}, {}, 1.0))
            else:
                self.endpoint.send("server", RequestFailed(message.request_id, error.code, str(error)))
        elif isinstance(message, CancelRequest):
            self.endpoint.send("server", RequestFailed(message.request_id, "CANCELLED", "taken back"))

    def _kept(self, session_id: str | None) -> bool:
        return any(m.task == "keep" and m.session_id == session_id for m in self.of(Submit))

    def of(self, kind: type) -> list:
        return [message for message in self.seen if isinstance(message, kind)]

    async def wait_for(self, kind: type, count: int = 1) -> list:
        async with asyncio.timeout(5):
            while len(self.of(kind)) < count:
                self.news.clear()
                await self.news.wait()
        return self.of(kind)

    def ask(self, generation: int = 1, replicas: tuple[int, ...] = (0, 3), at_start: bool = True) -> None:
        self.endpoint.send("server", WarmUp("toy", generation, list(replicas), at_start))


@pytest.fixture
async def conductor() -> AsyncIterator[Conductor]:
    running = Conductor()
    yield running
    await running.warm_ups.stop()
    for task in running.tasks:
        task.cancel()
    assert running.dispatcher.num_running == 0
    assert running.dispatcher.num_sessions == 0
    assert running.server_plane.num_held_bytes == 0


async def test_every_task_runs_where_it_was_asked_for_in_a_session_of_its_own(conductor: Conductor) -> None:
    for generation in (7, 8, 9):
        conductor.ask(generation, replicas=(generation, 0))
    assert sorted(warmed.generation for warmed in await conductor.wait_for(Warmed, 3)) == [7, 8, 9]
    submits = conductor.of(Submit)
    for generation in (7, 8, 9):
        mine = [submit for submit in submits if submit.warmup_on == [generation, 0]]
        assert [submit.task for submit in mine] == ["recall", "keep", "keep", "recall", "recall"]
        assert [submit.is_cold for submit in mine] == [True, True, False, True, False]
        assert len({submit.session_id for submit in mine}) == 1
        np.testing.assert_array_equal(conductor.plane.view(mine[1].inputs["x"]), np.zeros((1, 2), np.float32))
        assert set(mine[1].inputs) == {"x"}
    assert len({submit.session_id for submit in submits}) == 3
    await conductor.wait_for(CloseSession, 3)
    assert not conductor.cannot_start


async def test_clients_are_refused_meanwhile(conductor: Conductor) -> None:
    conductor.silent.add("keep")
    conductor.ask()
    await conductor.wait_for(Submit, 2)
    with pytest.raises(Unavailable, match="'toy' is not serving: it is starting"):
        conductor.dispatcher.submit("toy", "keep", {}, {}, request_id="r", criticality="planning")


async def test_a_failure_of_the_first_warm_up_ends_the_start(conductor: Conductor) -> None:
    conductor.refuse["keep"] = InvalidArgument("the weights do not fit")
    conductor.ask()
    (warmed,) = await conductor.wait_for(Warmed)
    sentence = "warm-up of model 'toy', task 'keep': the weights do not fit"
    assert warmed == Warmed("toy", 1, sentence)
    (error,) = conductor.cannot_start
    assert isinstance(error, InvalidArgument)
    assert str(error) == sentence


async def test_a_later_failure_is_told_to_the_conductor_only(conductor: Conductor) -> None:
    conductor.refuse["keep"] = Internal("the device is broken")
    conductor.ask(generation=2, at_start=False)
    (warmed,) = await conductor.wait_for(Warmed)
    assert (warmed.generation, warmed.reason) == (2, "warm-up of model 'toy', task 'keep': the device is broken")
    assert not conductor.cannot_start


@pytest.mark.parametrize(("at_start", "num_tries"), [(True, 1), (False, 3)])
async def test_what_requests_exhaust_is_tried_again(conductor: Conductor, at_start: bool, num_tries: int) -> None:
    conductor.refuse["keep"] = ResourceExhausted("no pages left")
    conductor.ask(at_start=at_start)
    (warmed,) = await conductor.wait_for(Warmed)
    assert warmed.reason == "warm-up of model 'toy', task 'keep': no pages left"
    assert len(conductor.of(OpenSession)) == num_tries
    assert len(conductor.cannot_start) == at_start


@pytest.mark.parametrize("at_start", [True, False])
async def test_what_is_unavailable_though_no_worker_was_lost_is_told(conductor: Conductor, at_start: bool) -> None:
    conductor.refuse["keep"] = Unavailable("the camera is off")
    conductor.ask(at_start=at_start)
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 1, "the camera is off")]
    assert len(conductor.of(OpenSession)) == 3
    assert not conductor.cannot_start


async def test_a_try_that_goes_well_is_enough(conductor: Conductor) -> None:
    conductor.refuse["keep"] = ResourceExhausted("no pages left")
    conductor.ask(at_start=False)
    await conductor.wait_for(CloseSession)
    conductor.refuse.clear()
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 1)]


async def test_a_task_that_never_gets_what_it_needs_fails_the_warm_up(conductor: Conductor) -> None:
    conductor.refuse["recall"] = FailedPrecondition("run something else first")
    conductor.ask()
    (warmed,) = await conductor.wait_for(Warmed)
    assert warmed.reason == "warm-up of model 'toy', task 'recall': run something else first"


async def test_a_lost_worker_abandons_the_warm_up_quietly(
    conductor: Conductor, caplog: pytest.LogCaptureFixture
) -> None:
    conductor.refuse["keep"] = Unavailable("the worker of rank 0 ended with status -9")
    conductor.ask()
    await conductor.wait_for(CloseSession)
    conductor.refuse.clear()
    conductor.ask(generation=2)
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 2)]
    assert not conductor.cannot_start
    assert caplog.text == ""


async def test_a_newer_question_overtakes_the_one_that_hangs(conductor: Conductor) -> None:
    conductor.silent.add("keep")
    conductor.ask()
    conductor.ask(generation=2, replicas=(1, 3))
    await conductor.wait_for(Submit, 4)
    conductor.silent.clear()
    conductor.ask(generation=3)
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 3)]
    (cancelled,) = await conductor.wait_for(CancelRequest)
    hanging = [submit for submit in conductor.of(Submit) if submit.task == "keep"][:2]
    assert cancelled.request_id == next(submit.request_id for submit in hanging if submit.warmup_on == [0, 3])
    await conductor.wait_for(CloseSession, 2)


async def test_a_server_that_drains_warms_nothing_up(conductor: Conductor) -> None:
    await conductor.dispatcher.drain()
    conductor.ask()
    conductor.endpoint.send("server", ServingState("toy", False, "it is warming up"))
    while conductor.dispatcher.serving["toy"].reason != "it is warming up":
        await asyncio.sleep(0)
    await conductor.warm_ups.stop()
    assert not conductor.of(Submit)
    assert not conductor.of(Warmed)


async def test_a_policy_runs_with_all_cameras_and_is_measured_three_times(conductor: Conductor) -> None:
    await warm_up(toy_policy(), conductor.dispatcher, [])
    submits = conductor.of(Submit)
    assert [submit.is_cold for submit in submits[:5]] == [True, True, False, False, False]
    assert ["image_wrist" in submit.inputs for submit in submits[:5]] == [False, True, True, True, True]


async def test_a_policy_runs_for_several_robots_at_once_cold_and_measured(conductor: Conductor) -> None:
    await warm_up(toy_policy(), conductor.dispatcher, [])
    together = conductor.of(Submit)[5:]
    assert [submit.is_cold for submit in together] == [True] * 12 + [False] * 12
    assert all("image_wrist" in submit.inputs and submit.session_id is None for submit in together)
    again = len(conductor.of(Submit))
    await warm_up(toy_policy(), conductor.dispatcher, [], measures=False)
    assert [submit.is_cold for submit in conductor.of(Submit)[again:]] == [True] * (3 + 24), "a worker that comes back"


@pytest.mark.parametrize(
    ("alone", "expected"),
    [
        (Alone(0.01, 0.0), 12), (Alone(MAX_S / 5, 0.0), 4), (Alone(MAX_S, 0.0), 0),
        (Alone(0.01, MAX_STEP_S / 5), 4), (Alone(0.01, MAX_STEP_S), 0),
    ],
)  # fmt: skip
async def test_what_takes_long_does_not_run_together(alone: Alone, expected: int) -> None:
    runs: list[None] = []

    async def once() -> Finished:
        runs.append(None)
        return FINISHED

    await run_together(once, alone, MAX_STEP_S)
    assert len(runs) == expected


async def test_what_a_run_takes_alone_is_that_of_the_quickest() -> None:
    steps_us = iter([(4000.0, 2), (1500.0, 1)])

    async def once() -> Finished:
        run_us, num_steps = next(steps_us)
        return Finished(
            "r", 0, {"long": NodeTime(num_steps, 0.0, run_us), "short": NodeTime(9, 0.0, 90.0)}, {}, {}, 1.0
        )

    assert (await run_alone(once, 2)).step_s == pytest.approx(0.0015)


async def test_what_fails_together_is_told_after_all_have_ended() -> None:
    runs: list[None] = []

    async def once() -> Finished:
        runs.append(None)
        if len(runs) == 2:
            raise ResourceExhausted("no pages left")
        return FINISHED

    with pytest.raises(ResourceExhausted, match="no pages left"):
        await run_together(once, Alone(0.01, 0.0))
    assert len(runs) == 4


async def test_a_rank_that_comes_back_is_not_measured_again(conductor: Conductor) -> None:
    conductor.ask(at_start=False)
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 1)]
    assert [(submit.task, submit.is_cold) for submit in conductor.of(Submit)] == [
        ("recall", True), ("keep", True), ("recall", True),
    ]  # fmt: skip


async def test_a_task_that_runs_once_only_serves_all_the_same(
    conductor: Conductor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mstar_rt.server.warmup")
    conductor.refuse_measured = ResourceExhausted("there is room for one frame")
    conductor.ask()
    assert await conductor.wait_for(Warmed) == [Warmed("toy", 1)]
    assert "its cost is unknown: there is room for one frame" in caplog.text


def test_what_a_request_costs_is_measured_with_what_most_robots_have() -> None:
    model = toy_policy()
    tensors, params = usual_request(model, model.task("act"), {"num_denoise_steps": 7})
    assert set(tensors) == {"image_top", "image_wrist", "state"}
    assert (params["num_denoise_steps"], params["chunking"], params["normalization"]) == (7, "none", "lab")
    assert "previous_actions" in usual_request(model, model.task("act"), {"chunking": "guided"})[0]


def test_what_a_request_cannot_do_without_is_given() -> None:
    frames = TensorSpec("frames", ("T", 4), ("uint8",), "frames", optional=True)
    latents = TensorSpec("latents", ("T", 3), ("float32",), "latents", optional=True)
    past = TensorSpec("past", ("T-1", 7), ("float32",), "past actions", optional=True)
    params = (
        ParamSpec("derived", "int", None, "of the shapes", minimum=1),
        ParamSpec("steps", "int", None, "needed", minimum=3),
        ParamSpec("count", "int", None, "needed"),
        ParamSpec("scale", "float", None, "needed", maximum=0.5),
        ParamSpec("kind", "str", None, "needed", choices=("a", "b")),
        ParamSpec("pose", "floats", None, "needed", length=2),
        ParamSpec("fast", "bool", None, "needed"),
        ParamSpec("spare", "int", None, "not needed", optional=True),
        ParamSpec("known", "int", 4, "has a default"),
    )
    task = TaskSpec(
        "t", "", (frames, latents, past), (Y,), ("walk",), params, derived=(("derived", "T"),),
        one_of=(("frames", "latents"),),
    )  # fmt: skip
    assert {name: (array.shape, array.dtype.name) for name, array in zeros(task).items()} == {
        "frames": ((1, 4), "uint8")
    }
    given = needed_params(task)
    assert given == {"steps": 3, "count": 1, "scale": 0.5, "kind": "a", "pose": (1.0, 1.0), "fast": False}
    node = GraphNode("node", ("frames", "latents", "past"), ("y",))
    graph = WalkGraph((node,), (Walk("walk", node, emit=("y",)),))
    model = ServedModel("m", "m", "", graph, (task,), "nowhere:nodes")
    assert model.check_request("t", zeros(task), given)["derived"] == 1
