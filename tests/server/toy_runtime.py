"""A whole edge for tests: the real gRPC server on loopback, against a conductor and a worker that are scripted here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.message import (
    AskStats,
    AskTrace,
    CancelRequest,
    Distribution,
    Emitted,
    Finished,
    Message,
    NodeTime,
    OpenSession,
    Release,
    RequestFailed,
    ServingState,
    SessionOpened,
    Stats,
    Submit,
    Trace,
)  # fmt: skip
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.node_place import NodePlace
from mstar_rt.server.dispatch import MAX_UNREAD_BYTES, Dispatcher
from mstar_rt.server.edge import Edge, EdgeConfig, start_edge
from mstar_rt.server.tensor_port import Readers
from mstar_rt.transport import InProcessHub, InProcessPlanes

SIZE = 80  # pixels: one frame takes 19200 bytes, more than travels inside a message
PATCHES, WIDTH = 64, 96  # one latent takes 24576 bytes
MAX_HORIZON = 4
PLACES = (
    NodePlace("encode", ("encode", "set_goal"), (0, 2), "bfloat16"),
    NodePlace("plan", ("plan",), (1,), "float32"),
)
WAIT_S = 10.0


def toy_model(name: str = "toy") -> ServedModel:
    context = ("frames", "context_latents", "state")
    encoder = GraphNode("encoder", inputs=("frames",), outputs=("latents",))
    predictor = GraphNode("predictor", inputs=(*context, "actions", "states"), outputs=("latent", "pose"))
    keeper = GraphNode("keeper", inputs=("goal_frames",), outputs=("goal",))
    planner = GraphNode("planner", inputs=(*context, "goal_frames"), outputs=("plan_actions", "plan_cost"))
    graph = WalkGraph(
        nodes=(encoder, predictor, keeper, planner),
        walks=(
            Walk("encode", encoder, emit=("latents",)),
            Walk("rollout", predictor, emit=("latent", "pose")),
            Walk("set_goal", keeper, persist=("goal",)),
            Walk("plan", planner, emit=("plan_actions", "plan_cost")),
        ),
    )
    frames = TensorSpec("frames", ("T", SIZE, SIZE, 3), ("uint8",), "camera frames", max_sizes=(("T", 8),))
    latents = TensorSpec("context_latents", ("T", PATCHES, WIDTH), ("float32",), "encoded frames", optional=True)
    encoded = TensorSpec("latents", ("T", PATCHES, WIDTH), ("float32",), "encoded frames")
    state = TensorSpec("state", (7,), ("float32",), "pose of the last frame", units="m, rad")
    actions = TensorSpec("actions", ("B", "H", 7), ("float32",), "actions", max_sizes=(("H", MAX_HORIZON),))
    states = TensorSpec("states", ("B", "H", 7), ("float32",), "pose at each step", optional=True)
    goal = TensorSpec("goal_frames", (1, SIZE, SIZE, 3), ("uint8",), "goal image", optional=True)
    horizon = ParamSpec("rollout_horizon", "int", 2, "steps imagined", minimum=1, maximum=MAX_HORIZON)
    plan_params = (
        horizon,
        ParamSpec("num_samples", "int", 32, "candidates", minimum=2, maximum=256),
        ParamSpec("num_iterations", "int", 3, "iterations", minimum=1, maximum=10),
        ParamSpec("seed", "int", 0, "seed", minimum=0),
        ParamSpec("warm_start", "bool", False, "start from the last plan"),
        ParamSpec("pinned_dims", "floats", (), "pinned dimensions"),
        ParamSpec("pinned_values", "floats", (), "their values"),
        ParamSpec("cost", "str", "l1", "distance", choices=("l1", "l2")),
        ParamSpec("spice", "float", 0.5, "an option of this model alone", minimum=0.0, maximum=1.0),
    )
    step_outputs = (
        TensorSpec("latent", ("B", PATCHES, WIDTH), ("float32",), "imagined latent"),
        TensorSpec("pose", ("B", 7), ("float32",), "pose"),
    )
    optional_frames = TensorSpec("frames", frames.shape, frames.dtypes, frames.doc, optional=True)
    tasks = (
        TaskSpec("encode", "frames to latents", (frames,), (encoded,), ("encode",)),
        TaskSpec(
            "rollout", "imagine", (optional_frames, latents, state, actions, states), step_outputs, ("rollout",),
            (horizon,), derived=(("rollout_horizon", "H"),),
        ),
        TaskSpec(
            "plan", "plan", (optional_frames, latents, goal, state),
            (
                TensorSpec("plan_actions", ("H", 7), ("float32",), "actions"),
                TensorSpec("plan_cost", (2,), ("float32",), "best, elite mean"),
            ),
            ("plan",), plan_params,
        ),
        TaskSpec("set_goal", "keep a goal", (goal,), (), ("set_goal",)),
    )  # fmt: skip
    return ServedModel(
        name, "toy_family", "A model for tests.", graph, tasks, "nowhere:nodes", checkpoint="/secret/folder/toy.bin",
        facts={"image_size": SIZE, "trained_positions": (0, 6)},
    )  # fmt: skip


def everything_to(worker: str, *models: ServedModel) -> Callable[[str, str], Readers]:
    """One worker reads every input of every task."""
    by_name = {model.name: model for model in models}
    return lambda model, task: {spec.name: (worker,) for spec in by_name[model].task(task).inputs}


class Job:
    """One submitted request as a script sees it: emit, then finish or fail."""

    def __init__(self, runtime: ToyRuntime, submit: Submit, inputs: dict[str, np.ndarray]) -> None:
        self.submit = submit
        self.inputs = inputs
        self.cancelled = asyncio.Event()
        self._runtime = runtime
        self._num_emitted = 0

    def emit(self, name: str, value: np.ndarray, iteration: tuple[int, ...] = ()) -> None:
        ref = self._runtime.worker_plane.put(value.dtype.name, value.shape, value, [self.submit.reply_to])
        index, self._num_emitted = self._num_emitted, self._num_emitted + 1
        message = Emitted(self.submit.request_id, "walk", index, name, iteration, ref)
        self._runtime.worker.send(self.submit.reply_to, message)

    def finish(self, flags: tuple[str, ...] = (), num_iterations: int = 1) -> None:
        message = Finished(
            self.submit.request_id, self._num_emitted, {"encoder": NodeTime(2, 3.0, 40.0, 1)}, {"cem": 50.0},
            {"cem": num_iterations}, 100.0, list(flags), wait_us=3.0, run_us=40.0,
        )  # fmt: skip
        self._runtime.conductor.send(self.submit.reply_to, message)

    def fail(self, code: str, message: str) -> None:
        self._runtime.conductor.send(self.submit.reply_to, RequestFailed(self.submit.request_id, code, message))


Script = Callable[[Job], Awaitable[None]]


class ToyRuntime:
    """Everything behind the edge, on one event loop in a thread of its own; the test's thread is the client's."""

    def __init__(
        self,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        model: ServedModel | None = None,
        scripts: Mapping[str, Script] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self.model = model or toy_model()
        self._max_unread_bytes = max_unread_bytes
        self.scripts = dict(scripts or {"encode": encode, "rollout": rollout, "plan": plan, "set_goal": set_goal})
        self.refuse_session: tuple[str, str] | None = None
        self.rows = b'[["act","control",1000,2000,"r1",{"model":"toy"}]]'
        self.answers_traces = True
        self._seen: list[Message] = []
        self._changed = threading.Condition()
        self._jobs: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # ---- the test's side

    def start(self, config: EdgeConfig, serving: bool = True) -> None:
        self._thread.start()
        self.run(self._start(config))
        if serving:
            self.set_serving(True)

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    @property
    def address(self) -> str:
        return self.edge.address

    def set_serving(self, serving: bool, reason: str = "") -> None:
        async def tell() -> None:
            self.conductor.send("server", ServingState(self.model.name, serving, reason))
            while self.dispatcher.serving[self.model.name].serving != serving:
                await asyncio.sleep(0)

        self.run(tell())

    def script(self, task: str, script: Script) -> None:
        self.scripts[task] = script

    def wait_for(self, kind: type, count: int = 1) -> list[Any]:
        """The messages of `kind` that the conductor has had, once there are `count`."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self._of(kind)) >= count, WAIT_S)
            assert arrived, f"only {len(self._of(kind))} {kind.__name__} came"
            return self._of(kind)

    def seen(self, kind: type) -> list[Any]:
        with self._changed:
            return self._of(kind)

    def wait_until_nothing_is_held(self) -> None:
        async def settle() -> None:
            async with asyncio.timeout(WAIT_S):
                while self._held():
                    self.worker_plane.flush()
                    await asyncio.sleep(0)

        self.run(settle())

    def _held(self) -> int:
        held = self.server_plane.num_held_bytes + self.worker_plane.num_held_bytes + self.dispatcher.num_running
        return held + self.dispatcher.num_sessions

    def _of(self, kind: type) -> list[Any]:
        return [message for message in self._seen if isinstance(message, kind)]

    # ---- behind the edge

    async def _start(self, config: EdgeConfig) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        server, self.conductor, self.worker = (hub.endpoint(a) for a in ("server", "conductor", "worker/0"))
        self.server_plane, self.worker_plane = planes.plane(server), planes.plane(self.worker)
        self.dispatcher = Dispatcher(
            server,
            self.server_plane,
            {self.model.name: ("worker/0",)},
            everything_to("worker/0", self.model),
            self._clock,
            max_unread_bytes=self._max_unread_bytes,
        )
        self._tasks = [
            asyncio.create_task(work) for work in (self.dispatcher.run(), self._run_conductor(), self._run_worker())
        ]
        self.edge: Edge = await start_edge(
            config, {self.model.name: self.model}, self.dispatcher, self._clock, {self.model.name: PLACES}
        )

    async def _stop(self) -> None:
        await self.edge.stop()
        for task in [*self._tasks, *(task for _, task in self._jobs.values())]:
            task.cancel()

    async def _run_conductor(self) -> None:
        while True:
            for envelope in await self.conductor.receive_async():
                self._conduct(envelope.message)
                with self._changed:
                    self._seen.append(envelope.message)
                    self._changed.notify_all()

    async def _run_worker(self) -> None:
        while True:
            for envelope in await self.worker.receive_async():
                if isinstance(envelope.message, Release):
                    self.worker_plane.on_release(envelope.message)
                elif isinstance(envelope.message, AskStats):
                    waited = Distribution([1.0, 10.0], [1, 2, 0], 12.0)
                    answer = Stats(
                        "worker/0", envelope.message.ask_id, {"pages_free": 7.0}, {"queue_us/control": waited}
                    )
                    self.worker.send(envelope.message.reply_to, answer)
                elif isinstance(envelope.message, AskTrace) and self.answers_traces:
                    self.worker.send(envelope.message.reply_to, Trace("worker/0", envelope.message.ask_id, self.rows))

    def _conduct(self, message: Message) -> None:
        if isinstance(message, Submit):
            inputs = {name: self.worker_plane.view(ref).copy() for name, ref in message.inputs.items()}
            for ref in message.inputs.values():
                self.worker_plane.release(ref)
            self.worker_plane.flush()
            job = Job(self, message, inputs)
            task = asyncio.ensure_future(self.scripts[message.task](job))
            self._jobs[message.request_id] = job, task
        elif isinstance(message, CancelRequest):
            job, task = self._jobs[message.request_id]
            job.cancelled.set()
            job.inputs.clear()
            task.cancel()
            job.fail("CANCELLED", "the client took the request back")
        elif isinstance(message, OpenSession):
            if self.refuse_session is None:
                self.conductor.send("server", SessionOpened(message.session_id))
            else:
                self.conductor.send("server", RequestFailed(message.session_id, *self.refuse_session))
        elif isinstance(message, AskStats):
            self.conductor.send(message.reply_to, Stats("conductor", message.ask_id, {"sessions": 1.0}))


# ---- what the worker of the toy model computes


async def encode(job: Job) -> None:
    means = job.inputs["frames"].mean(axis=(1, 2, 3), dtype=np.float32)
    job.emit("latents", np.broadcast_to(means[:, None, None], (len(means), PATCHES, WIDTH)).copy())
    job.finish()


async def rollout(job: Job) -> None:
    """Latent and pose of step h are the sum of the actions up to h: the pose of its coordinates, the latent of all."""
    actions = job.inputs["actions"]
    totals = actions.cumsum(axis=1)
    for h in range(actions.shape[1]):
        latent = np.ones((len(actions), PATCHES, WIDTH), np.float32) * totals[:, h].sum(axis=1)[:, None, None]
        job.emit("pose", (job.inputs["state"] + totals[:, h]).astype(np.float32), (h,))
        job.emit("latent", latent, (h,))
    job.finish(flags=("beyond_trained_positions",) if actions.shape[1] == MAX_HORIZON else ())


async def plan(job: Job) -> None:
    params = job.submit.params
    horizon, num_iterations = params["rollout_horizon"], params["num_iterations"]
    assert isinstance(horizon, int)
    assert isinstance(num_iterations, int)
    for i in range(num_iterations):
        emit_improvement(job, i, horizon)
    job.finish(num_iterations=num_iterations)


def emit_improvement(job: Job, i: int, horizon: int) -> None:
    job.emit("plan_actions", np.full((horizon, 7), i + 1, np.float32), (i,))
    job.emit("plan_cost", np.array([1.0 / (i + 1), 2.0 / (i + 1)], np.float32), (i,))


async def set_goal(job: Job) -> None:
    job.finish()


async def never(job: Job) -> None:
    """Emits something large and then waits for the end of the world."""
    job.emit("latent", np.zeros((1, PATCHES, WIDTH), np.float32), (0,))
    await asyncio.Event().wait()


@contextmanager
def toy_runtime(
    config: EdgeConfig | None = None,
    serving: bool = True,
    max_unread_bytes: int = MAX_UNREAD_BYTES,
    model: ServedModel | None = None,
    scripts: Mapping[str, Script] | None = None,
    clock: Clock | None = None,
) -> Iterator[ToyRuntime]:
    """A running edge; at the end nothing may be held any more: no memory, no request, no session."""
    runtime = ToyRuntime(max_unread_bytes, model, scripts, clock)
    runtime.start(config or EdgeConfig(port=0, max_message_bytes=1 << 20), serving)
    try:
        yield runtime
        runtime.wait_until_nothing_is_held()
    finally:
        runtime.stop()
