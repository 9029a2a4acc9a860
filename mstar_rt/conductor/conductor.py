"""Takes requests through the walks of their task and keeps sessions; tensors never pass through here."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mstar_rt.clock import Clock
from mstar_rt.conductor.requests import RequestState, SessionState
from mstar_rt.errors import Cancelled, FailedPrecondition, MstarError, NotFound, Unavailable, nearest
from mstar_rt.message import (
    AskStats,
    CancelRequest,
    CloseSession,
    Drain,
    Finished,
    Message,
    OpenSession,
    PeerGone,
    Release,
    ReleaseScope,
    RequestFailed,
    ServingState,
    SessionOpened,
    StartWalk,
    Stats,
    Submit,
    TensorRef,
    WalkDone,
    WalkFailed,
    WorkerReady,
)  # fmt: skip
from mstar_rt.model import ServedModel
from mstar_rt.placement import Placement
from mstar_rt.transport import ControlEndpoint

logger = logging.getLogger(__name__)


class Conductor:
    """State of all requests and sessions of a deployment. Every accepted request ends in exactly one answer."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        placement: Placement,
        endpoint: ControlEndpoint,
        clock: Clock,
    ) -> None:
        self._models = models
        self._placement = placement
        self._endpoint = endpoint
        self._clock = clock
        self._requests: dict[str, RequestState] = {}
        self._sessions: dict[str, SessionState] = {}
        self._lost_sessions: set[str] = set()
        self._ready_ranks: set[int] = set()
        self._dead_pids: set[int] = set()
        self._draining = False
        self._num_by_end = {"finished": 0, "failed": 0, "cancelled": 0}

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        while True:
            for envelope in await self._endpoint.receive_async():
                self.handle(envelope.message)

    def handle(self, message: Message) -> None:
        """Take in one record."""
        match message:
            case Submit():
                self._submit(message)
            case WalkDone():
                self._walk_done(message)
            case WalkFailed():
                self._fail(message.request_id, message.code, message.message)
            case CancelRequest():
                self._cancel(message.request_id)
            case OpenSession():
                self._open_session(message)
            case CloseSession():
                self._close_session(message.session_id)
            case WorkerReady():
                self._worker_ready(message)
            case AskStats():
                self._endpoint.send(message.reply_to, Stats(self._endpoint.address, message.ask_id, self.stats()))
            case Drain():
                self._draining = True
            case _:
                logger.error("the conductor got an unexpected %s", type(message).__name__)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        try:
            state = self._accept(submit)
        except MstarError as error:
            self._discard_inputs(submit)
            self._endpoint.send(submit.reply_to, RequestFailed(submit.request_id, error.code, str(error)))
            return
        self._requests[submit.request_id] = state
        if submit.session_id is not None:
            self._sessions[submit.session_id].requests.add(submit.request_id)
        self._start_next_walk(state, submit.inputs)

    def _accept(self, submit: Submit) -> RequestState:
        if self._draining:
            raise Unavailable("the server is draining and takes no new requests; try again in 5 s")
        if submit.model not in self._models:
            raise NotFound(f"no model {submit.model!r}, {nearest(submit.model, self._models)}")
        assert submit.request_id not in self._requests, "the server makes request ids unique"
        task = self._models[submit.model].task(submit.task)
        rank = self._placement.rank_of(submit.model)
        if rank not in self._ready_ranks:
            raise Unavailable(
                f"model {submit.model!r} is not ready (its worker, rank {rank}, is starting); try again in 1 s"
            )
        if submit.session_id is not None:
            self._check_session(submit.session_id, submit.model)
        walks = list(task.walks)
        return RequestState(submit, rank, walks, len(walks), self._clock.now_ns(), task.anytime)

    def _check_session(self, session_id: str, model: str) -> None:
        if session_id in self._lost_sessions:
            raise Unavailable("the session's state was lost with its worker; open a new session and set the goal again")
        if session_id not in self._sessions:
            raise NotFound(f"no session {session_id!r}; it was closed or never opened")
        held = self._sessions[session_id].model
        if held != model:
            raise FailedPrecondition(f"session {session_id!r} belongs to model {held!r}, not {model!r}")

    def _start_next_walk(self, state: RequestState, inputs: dict[str, TensorRef]) -> None:
        submit, walk = state.submit, state.pending.pop(0)
        start = StartWalk(
            request_id=submit.request_id,
            model=submit.model,
            walk=walk,
            scope=state.scope,
            inputs=inputs,
            params=submit.params,
            deadline_ns=submit.deadline_ns,
            criticality=submit.criticality,
            reply_to=submit.reply_to,
            anytime=state.anytime,
            keep_inputs=bool(inputs and state.pending),
        )
        self._endpoint.send(f"worker/{state.rank}", start)

    def _walk_done(self, done: WalkDone) -> None:
        state = self._requests.get(done.request_id)
        if state is None:
            return  # cancelled while its last step ran
        state.add(done)
        if state.pending:
            self._start_next_walk(state, {})
            return
        self._forget(state)
        self._num_by_end["finished"] += 1
        finished = Finished(
            request_id=done.request_id,
            num_emitted=state.num_emitted,
            node_times=state.node_times,
            loop_us=state.loop_us,
            num_iterations=state.num_iterations,
            total_us=(self._clock.now_ns() - state.start_ns) / 1e3,
            flags=state.flags,
        )
        self._endpoint.send(state.submit.reply_to, finished)

    def _fail(self, request_id: str, code: str, message: str) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        self._forget(state)
        self._num_by_end["failed"] += 1
        self._endpoint.send(state.submit.reply_to, RequestFailed(request_id, code, message))

    def _cancel(self, request_id: str) -> None:
        """What runs is stopped before its next step."""
        state = self._requests.get(request_id)
        if state is None:
            return
        self._num_by_end["cancelled"] += 1
        self._endpoint.send(f"worker/{state.rank}", CancelRequest(request_id))
        self._forget(state)
        self._endpoint.send(
            state.submit.reply_to, RequestFailed(request_id, Cancelled.code, "the request was cancelled")
        )

    def _forget(self, state: RequestState) -> None:
        submit = state.submit
        del self._requests[submit.request_id]
        if submit.session_id is None or state.num_walks > 1:
            self._endpoint.send(f"worker/{state.rank}", ReleaseScope(submit.request_id))
        if submit.session_id in self._sessions:
            self._sessions[submit.session_id].requests.discard(submit.request_id)

    def _discard_inputs(self, submit: Submit) -> None:
        """No worker will read them: let go of the blocks in the worker's name."""
        block_ids = [ref.segment.block_id for ref in submit.inputs.values() if ref.segment is not None]
        if block_ids and submit.model in self._models:
            worker = f"worker/{self._placement.rank_of(submit.model)}"
            self._endpoint.send(submit.reply_to, Release(worker, block_ids))

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _open_session(self, opened: OpenSession) -> None:
        if opened.model not in self._models:
            message = f"no model {opened.model!r}, {nearest(opened.model, self._models)}"
            self._endpoint.send("server", RequestFailed(opened.session_id, NotFound.code, message))
            return
        rank = self._placement.rank_of(opened.model)
        self._sessions[opened.session_id] = SessionState(opened.session_id, opened.model, rank)
        self._endpoint.send("server", SessionOpened(opened.session_id))

    def _close_session(self, session_id: str) -> None:
        self._lost_sessions.discard(session_id)
        session = self._sessions.get(session_id)
        if session is None:
            return
        for request_id in list(session.requests):
            self._cancel(request_id)
        del self._sessions[session_id]
        self._endpoint.send(f"worker/{session.rank}", ReleaseScope(session_id))

    # --- workers -----------------------------------------------------------------------------------------------------

    def _worker_ready(self, ready: WorkerReady) -> None:
        if ready.pid in self._dead_pids:
            return  # said before it died, read after
        self._ready_ranks.add(ready.rank)
        for model in self._placement.models_on(ready.rank):
            self._endpoint.send("server", ServingState(model, True))

    def worker_lost(self, rank: int, reason: str, pid: int | None = None) -> None:
        """A worker process ended: its requests end, its sessions' state is gone, what it held is dropped."""
        self._ready_ranks.discard(rank)
        if pid is not None:
            self._dead_pids.add(pid)
        address = f"worker/{rank}"
        self._endpoint.forget_peer(address)
        for model in self._placement.models_on(rank):
            self._endpoint.send("server", ServingState(model, False, reason))
        for request_id, state in list(self._requests.items()):
            if state.rank == rank:
                self._fail(request_id, Unavailable.code, f"{reason}; try again in 1 s")
        for session_id, session in list(self._sessions.items()):
            if session.rank == rank:
                del self._sessions[session_id]
                self._lost_sessions.add(session_id)
        self._endpoint.send("server", PeerGone(address))

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""
        values = {f"requests_{end}_total": float(count) for end, count in self._num_by_end.items()}
        values["requests_running"] = float(len(self._requests))
        values["sessions"] = float(len(self._sessions))
        values["ranks_ready"] = float(len(self._ready_ranks))
        return values
