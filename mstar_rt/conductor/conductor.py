"""The conductor's messages: what comes in, and who takes care of it. Tensors never pass through here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from mstar_rt.clock import Clock
from mstar_rt.conductor.admission import Admission
from mstar_rt.conductor.input_holds import releases
from mstar_rt.conductor.itinerary import Itineraries
from mstar_rt.conductor.replicas import choose_replicas
from mstar_rt.conductor.requests import RequestState
from mstar_rt.conductor.running import RunningRequests
from mstar_rt.conductor.sessions import LOST, Session, Sessions
from mstar_rt.conductor.warmups import WarmUps
from mstar_rt.conductor.workers import Workers
from mstar_rt.config import WorkerConfig
from mstar_rt.config_admission import AdmissionConfig
from mstar_rt.errors import MstarError, NotFound, Unavailable, nearest
from mstar_rt.message import (
    Admitted,
    AskStats,
    CancelRequest,
    CloseSession,
    Drain,
    Heartbeat,
    Message,
    OpenSession,
    PeerGone,
    ReleaseScope,
    RequestFailed,
    SessionOpened,
    Stats,
    Submit,
    WalkDone,
    WalkFailed,
    WalkYields,
    Warmed,
    WorkerReady,
)  # fmt: skip
from mstar_rt.model import ServedModel
from mstar_rt.placement import Placement
from mstar_rt.transport import ControlEndpoint

logger = logging.getLogger(__name__)

SERVER = "server"


class Conductor:
    """State of all requests and sessions of a deployment. Every accepted request ends in exactly one answer."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        placement: Placement,
        endpoint: ControlEndpoint,
        clock: Clock,
        workers: Sequence[WorkerConfig] = (),
        admission: AdmissionConfig | None = None,
    ) -> None:
        self._models = models
        self._placement = placement
        self._endpoint = endpoint
        self._clock = clock
        self._workers = Workers(workers)
        self._warm_ups = WarmUps(placement, self._workers)
        self._sessions = Sessions()
        self._admission = Admission(
            admission or AdmissionConfig(), models, placement, self._warm_ups.warm_ranks, clock, workers
        )
        self._running = RunningRequests(endpoint, clock, self._workers, self._admission)
        self._itineraries = Itineraries(placement)
        self._draining = False

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
                self._running.part_done(message)
            case WalkFailed():
                self._running.part_failed(message)
            case WalkYields():
                self._running.part_yields(message)
            case CancelRequest():
                self._running.cancel(message.request_id)
            case Heartbeat():
                self._workers.hear(message, self._clock.now_ns())
            case OpenSession():
                self._open_session(message)
            case CloseSession():
                self._close_session(message.session_id)
            case WorkerReady():
                self._worker_ready(message)
            case Warmed():
                self._tell_server(self._warm_ups.ended(message))
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
            self._refuse(submit, error)
            return
        self._running.begin(state)

    def _accept(self, submit: Submit) -> RequestState:
        assert submit.request_id not in self._running, "the server makes request ids unique"
        self._check_draining()
        if submit.model not in self._models:
            raise NotFound(f"no model {submit.model!r}, {nearest(submit.model, self._models)}")
        model = self._models[submit.model]
        task = model.task(submit.task)
        self._check_serving(submit.model, submit.warmup_on)
        session = None if submit.session_id is None else self._sessions.get(submit.session_id, submit.model)
        groups, warm = self._placement.groups(submit.model), self._warm_ups.warm_ranks(submit.model)
        choices = choose_replicas(groups, self._running.num_on, self._sessions, session, warm, submit.warmup_on)
        itinerary = self._itineraries.get(model, task, choices)
        state = RequestState(submit, itinerary, session, self._clock.now_ns())
        self._admission.admit(state)
        return state

    def _check_draining(self) -> None:
        if self._draining:
            raise Unavailable("the server is draining and takes nothing new; try again in 5 s")

    def _check_serving(self, model: str, warmup_on: Sequence[int] | None) -> None:
        """A warm-up needs no more than that its ranks are ready."""
        if warmup_on is None and self._warm_ups.is_serving(model):
            return
        reason = self._warm_ups.reason(model)
        if warmup_on is not None:
            missing = self._workers.missing([*warmup_on, *self._warm_ups.fixed_ranks(model)])
            if not missing:
                return
            reason = f"no worker is ready on rank {missing[0]}"
        raise Unavailable(f"model {model!r} is not ready ({reason}); try again in 1 s")

    def _refuse(self, submit: Submit, error: MstarError) -> None:
        """No worker will read its inputs: they are let go in the name of all that might have."""
        model = self._models.get(submit.model)
        if model is not None:
            tasks = [task for task in model.tasks if task.name == submit.task]
            everyone = self._placement.ranks_of(model.name)
            readers = self._placement.readers(model.name, tasks[0].walks) if tasks else {}
            holders = {name: readers.get(name, () if tasks else everyone) for name in submit.inputs}
            for owner, release in releases(submit.inputs, holders):
                self._endpoint.send(owner, release)
        self._endpoint.send(submit.reply_to, _failed(submit.request_id, error))

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _open_session(self, opened: OpenSession) -> None:
        try:
            self._check_draining()
            if opened.model not in self._models:
                raise NotFound(f"no model {opened.model!r}, {nearest(opened.model, self._models)}")
            self._admission.open_session(opened)
        except MstarError as error:
            self._endpoint.send(SERVER, _failed(opened.session_id, error))
            return
        self._sessions.open(opened.session_id, opened.model)
        self._endpoint.send(SERVER, SessionOpened(opened.session_id))

    def _close_session(self, session_id: str) -> None:
        self._admission.close_session(session_id)
        self._sessions.forget_lost(session_id)
        session = self._sessions.find(session_id)
        if session is None:
            return
        for request_id in self._running.waiting_first(session.requests):
            self._running.cancel(request_id)
        self._sessions.close(session)
        self._free_session(session)

    def _free_session(self, session: Session) -> None:
        for rank in sorted(session.ranks):
            self._endpoint.send(f"worker/{rank}", ReleaseScope(session.session_id))
        self._running.pages_returned(session.ranks)

    # --- workers -----------------------------------------------------------------------------------------------------

    def is_ready(self, rank: int) -> bool:
        """Its worker has said that it is ready, and lives."""
        return self._workers.is_ready(rank)

    def overdue(self, now_ns: int) -> list[tuple[int, str]]:
        """(rank, why) of the workers that hang and should be killed; to be asked at least every two seconds."""
        return self._workers.overdue(now_ns)

    def _worker_ready(self, ready: WorkerReady) -> None:
        if not self._workers.say_ready(ready, self._clock.now_ns()):
            return
        self._endpoint.send(f"worker/{ready.rank}", Admitted(self._running.last_walk_id))
        self._tell_server(self._warm_ups.rank_ready(ready.rank))

    def worker_lost(self, rank: int, reason: str, pid: int | None = None) -> None:
        """A worker process ended: requests that need it end, sessions whose state lay there are lost, what it held is
        dropped. Models that can do without it go on."""
        self._workers.lost(rank, pid)
        self._endpoint.forget_peer(f"worker/{rank}")
        self._tell_server(self._warm_ups.rank_lost(rank, reason))
        # Before the requests end: what a worker reads of the dead one's memory from now on fails by itself.
        for other in self._workers.ready_ranks:
            self._endpoint.send(f"worker/{other}", PeerGone(f"worker/{rank}"))
        self._end_what_needed(rank, reason)
        self._endpoint.send(SERVER, PeerGone(f"worker/{rank}"))
        for model in self._placement.models_on(rank):
            self._tell_server(self._warm_ups.due(model))

    def _tell_server(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._endpoint.send(SERVER, message)

    def _end_what_needed(self, rank: int, reason: str) -> None:
        doomed = dict.fromkeys(self._running.touching(rank), f"{reason}; try again in 1 s")
        lost = self._sessions.rank_lost(rank)
        for session in lost:
            doomed |= {request_id: LOST for request_id in session.requests if request_id not in doomed}
        for request_id in self._running.waiting_first(doomed):
            self._running.fail(request_id, Unavailable.code, doomed[request_id])
        for session in lost:
            self._free_session(session)

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""
        return {
            **self._running.stats(),
            **self._admission.stats(),
            "sessions": float(len(self._sessions)),
            "sessions_lost": float(self._sessions.num_lost),
            "ranks_ready": float(len(self._workers.ready_ranks)),
            **self._warm_ups.stats(),
        }


def _failed(name: str, error: MstarError) -> RequestFailed:
    return RequestFailed(name, error.code, str(error), error.retry_after_s)
