"""What the deployment takes on: sessions of robots by the time that they need, requests by when they would begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from mstar_rt.clock import Clock
from mstar_rt.conductor.admission_costs import CostBook, Estimate, Kind, TaskCosts
from mstar_rt.conductor.admission_queue import CLASSES, Call, RequestQueues
from mstar_rt.conductor.admission_rates import Reservations
from mstar_rt.conductor.admission_sharing import Sharing
from mstar_rt.conductor.requests import RequestState
from mstar_rt.config import WorkerConfig
from mstar_rt.config_admission import AdmissionConfig
from mstar_rt.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted
from mstar_rt.message import OpenSession, Submit
from mstar_rt.model import ServedModel
from mstar_rt.placement import Placement

REASONS = ("utilisation", "queue_full", "too_late", "client_limit")
LOOK_EVERY_NS = 500_000_000
"""How old the reckoning of what control sessions leave of a rank may be where requests are held against it."""


class Admission:
    """Every session and every request is told of when it comes, and when it ends.

    Who has no name (`client` "") has no limits of its own; warm-ups (`warmup_on`) have none at all.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        models: Mapping[str, ServedModel],
        placement: Placement,
        warm_ranks: Callable[[str], AbstractSet[int]],
        clock: Clock,
        workers: Sequence[WorkerConfig] = (),
    ) -> None:
        self._config = config
        self._clock = clock
        self._placement = placement
        self._ranks = sorted({rank for model in placement.models for rank in placement.ranks_of(model)})
        self._costs = CostBook(models, placement)
        sharing = Sharing(models, placement, self._costs, workers)
        self._reservations = Reservations(config.utilisation_bound, self._costs, sharing, placement, warm_ranks)
        limits = {"planning": config.max_queued_planning, "generation": config.max_queued_generation}
        self._queues = RequestQueues(limits, self._left)
        self._used: Mapping[int, float] = {}
        self._used_at_ns: int | None = None
        self._num_refused: Counter[str] = Counter()
        self._num_control = 0
        self._requests_of: Counter[str] = Counter()
        self._sessions_of: Counter[str] = Counter()
        self._client_of: dict[str, str] = {}
        self._admitted: dict[str, tuple[TaskCosts, Kind]] = {}

    # --- sessions ----------------------------------------------------------------------------------------------------

    def open_session(self, opened: OpenSession) -> None:
        """Raises:  ResourceExhausted, with the numbers."""
        most = self._config.max_sessions_per_client
        if opened.client and self._sessions_of[opened.client] >= most:
            self._num_refused["client_limit"] += 1
            raise ResourceExhausted(f"this client has {most} sessions open, at most {most} may be: close some")
        if opened.rate_hz:
            if not self._may_take_over(opened):
                opened = msgspec.structs.replace(opened, takes_over="")
            try:
                self._reservations.reserve(opened, self._clock.now_ns())
            except ResourceExhausted:
                self._num_refused["utilisation"] += 1
                raise
            self._used_at_ns = None
        if opened.client:
            self._sessions_of[opened.client] += 1
            self._client_of[opened.session_id] = opened.client

    def _may_take_over(self, opened: OpenSession) -> bool:
        """Only who has a name can be told from others: who reconnects has another address. Names hold no colon."""
        holder = self._client_of.get(opened.takes_over, opened.client)
        return holder == opened.client or (":" in holder and ":" in opened.client)

    def close_session(self, session_id: str) -> None:
        """Idempotent."""
        self._reservations.release(session_id, self._clock.now_ns())
        self._used_at_ns = None
        client = self._client_of.pop(session_id, None)
        if client is not None:
            _count_down(self._sessions_of, client)

    # --- requests ----------------------------------------------------------------------------------------------------

    def admit(self, state: RequestState) -> None:
        """Before it begins. Whatever is admitted has to be said to have `ended`.

        Raises:  ResourceExhausted, with the numbers.  FailedPrecondition: class control without an admitted session.
                 DeadlineExceeded: what came with it is too much for its deadline.
        """
        submit = state.submit
        costs = self._costs.of(submit.model, submit.task)
        if submit.criticality == "control":
            reservation = self._reservations.get(submit.client)
            if reservation is None:
                raise FailedPrecondition(f"class control is for sessions admitted to it, and {submit.client!r} is none")
            self._admitted[submit.request_id] = costs, reservation.use.kind
            self._num_control += 1
            return
        kind = costs.kind(submit.params)
        if submit.warmup_on is None:
            num_sharing = self._num_sharing(submit)
            self._queue(state, costs.estimate(kind, num_sharing), Call(submit.num_together, num_sharing))
        self._admitted[submit.request_id] = costs, kind

    def _num_sharing(self, submit: Submit) -> int:
        """Of the requests of its call, those that are in one step at the least: replicas share them out."""
        num_replicas = max([len(group.ranks) for group in self._placement.groups(submit.model)], default=1)
        return max(1, submit.num_together // num_replicas)

    def _queue(self, state: RequestState, estimate: Estimate, call: Call) -> None:
        submit, now_ns = state.submit, self._clock.now_ns()
        most = self._config.max_requests_per_client
        if submit.client and self._requests_of[submit.client] >= most:
            self._num_refused["client_limit"] += 1
            raise ResourceExhausted(
                f"{most} requests of this client have no answer yet, at most {most} may: wait for some of them"
            )
        cost_ns = self._cost_ns(state, estimate)
        try:
            reason = "queue_full"
            self._queues.check_room(submit.criticality, now_ns)
            reason = "too_late"
            self._queues.check_start(submit.criticality, submit.deadline_ns, cost_ns, now_ns, call)
        except (ResourceExhausted, DeadlineExceeded):
            self._num_refused[reason] += 1
            raise
        self._queues.add(submit.request_id, submit.criticality, submit.deadline_ns, cost_ns, now_ns)
        if submit.client:
            self._requests_of[submit.client] += 1

    def _cost_ns(self, state: RequestState, estimate: Estimate) -> dict[int, int]:
        """Of each rank that the request uses; 0 where nothing has been measured."""
        cost_ns: dict[int, int] = dict.fromkeys(state.itinerary.ranks, 0)
        for stage in state.itinerary.stages:
            program = self._placement.program(state.submit.model, stage.walk)
            for node, rank in zip(program.nodes, stage.plan.node_ranks, strict=True):
                by_rank = estimate.get((stage.walk, node.name))
                if by_rank is not None:
                    cost_ns[rank] += int(1e3 * by_rank.get(rank, max(by_rank.values())))
        return cost_ns

    def ended(self, state: RequestState, has_finished: bool) -> None:
        """A request that was admitted has its answer."""
        submit = state.submit
        costs, kind = self._admitted.pop(submit.request_id)
        now_ns = self._clock.now_ns()
        if submit.criticality == "control":
            self._num_control -= 1
        elif submit.warmup_on is None:
            self._queues.remove(submit.request_id, now_ns)
            if submit.client:
                _count_down(self._requests_of, submit.client)
        if has_finished and not submit.is_cold:
            costs.note(kind, state.parts, now_ns)

    def _left(self, rank: int) -> float:
        now_ns = self._clock.now_ns()
        if self._used_at_ns is None or now_ns - self._used_at_ns > LOOK_EVERY_NS:
            self._used, self._used_at_ns = self._reservations.utilisation_apart(), now_ns
        return 1.0 - self._used.get(rank, 0.0)

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""
        used = self._reservations.utilisation()
        queued = {"control": self._num_control, **{name: self._queues.num[i] for i, name in enumerate(CLASSES)}}
        return {
            **{f"admitted_utilisation/{rank}": used.get(rank, 0.0) for rank in self._ranks},
            **{f"queued/{name}": float(count) for name, count in queued.items()},
            **{f"refused/{reason}": float(self._num_refused[reason]) for reason in REASONS},
            "control_sessions": float(len(self._reservations)),
        }


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
