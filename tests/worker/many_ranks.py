"""Conductor, workers and a stand-in for the server in one thread, each driven turn by turn in any order."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import composite_model

from mstar_rt.clock import ManualClock
from mstar_rt.conductor import Conductor
from mstar_rt.config import PlacementRule, WorkerConfig
from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Emitted,
    EmittedGroup,
    Finished,
    OpenSession,
    PeerGone,
    Playback,
    Release,
    RequestFailed,
    ServingState,
    SessionOpened,
    Submit,
    WalkYields,
    Warmed,
    WarmUp,
    WorkerReady,
)  # fmt: skip
from mstar_rt.placement import PlacedModel, place
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import LoadedModel, load_model
from mstar_rt.worker.worker import Worker

MODEL = "composite"
LEAST_BYTES = 704
"""Shared memory for the largest tensor of requests of up to 5 rows and 6 steps, alone, beside the header."""


def rule(ranks: Sequence[int] | int, *nodes: str, walks: Sequence[str] = ("*",)) -> PlacementRule:
    return PlacementRule(
        MODEL, tuple(nodes) or ("*",), (ranks,) if isinstance(ranks, int) else tuple(ranks), tuple(walks)
    )


PLACEMENTS: dict[str, tuple[int, tuple[PlacementRule, ...]]] = {
    "one rank": (1, (rule(0),)),
    "encoder apart": (2, (rule(1), rule(0, "encode"))),
    "prefill and decode apart": (2, (rule(0), rule(1, "decode", "codec", "combine"))),
    "branches apart": (3, (rule(0), rule(1, "uncond"), rule(2, "codec", "vocode"))),
    "all apart": (
        4,
        (
            rule(0),
            rule(1, "prefill", "cond", "listen"),
            rule(2, "decode", "uncond"),
            rule(3, "codec", "vocode", "combine"),
        ),
    ),
}
"""Number of ranks, and the rules."""


class ManyRanks:
    """A deployment of the composite model. `pages` limits its cache "text" on every rank."""

    def __init__(
        self,
        placement: str = "all apart",
        seed: int = 0,
        pages: int | None = None,
        max_batch: int = 16,
        check_outputs: bool = False,
        arena_bytes: int = 1 << 24,
    ) -> None:
        num_ranks, rules = PLACEMENTS[placement]
        self.rng = random.Random(seed)
        self.clock = ManualClock(1)
        self.hub, self.planes = InProcessHub(), InProcessPlanes()
        self.model = composite_model.declare(MODEL, "", {})
        self.placement = place(
            {MODEL: PlacedModel(self.model.graph, self.model.cache_lifetimes)}, rules, list(range(num_ranks))
        )
        self.server, conductor = self.hub.endpoint("server"), self.hub.endpoint("conductor")
        self.plane = self.planes.plane(self.server)
        self._conductor_inbox = conductor
        self.conductor = Conductor({MODEL: self.model}, self.placement, conductor, self.clock)
        self.loaded: dict[int, LoadedModel] = {}
        self.workers: dict[int, Worker] = {}
        self.worker_planes: dict[int, Any] = {}
        self.endpoints: dict[int, Any] = {}
        self.pids: dict[int, int] = {}
        self.spare: dict[int, list[int]] = {}
        self._num_lives = 0
        self._arena_bytes = arena_bytes
        self._worker_options: dict[str, Any] = {"max_batch": max_batch, "check_outputs": check_outputs}
        for rank in range(num_ranks):
            self._new_worker(rank)
            if pages is not None and "text" in self.loaded[rank].pools:
                allocator = self.loaded[rank].pools["text"].allocator
                self.spare[rank] = allocator.allocate(allocator.num_free - pages)
        self.emitted: dict[str, dict[tuple[str, tuple[int, ...]], np.ndarray]] = {}
        self.ends: dict[str, Finished | RequestFailed] = {}
        self.num_turns = 0
        self.settle()

    def _new_worker(self, rank: int) -> None:
        nodes = self.placement.nodes_on(MODEL, rank)
        loaded = load_model(self.model, WorkerConfig(rank, kv_memory_mb=1), nodes)
        endpoint = self.hub.endpoint(f"worker/{rank}")
        plane = self.planes.plane(endpoint, self._arena_bytes)
        worker = Worker({MODEL: loaded}, endpoint, plane, self.clock, **self._worker_options)
        self._num_lives += 1
        self.pids[rank] = 1000 + self._num_lives
        endpoint.send("conductor", WorkerReady(rank, self.pids[rank], [MODEL], 0.0))
        self.loaded[rank], self.worker_planes[rank], self.workers[rank] = loaded, plane, worker
        self.endpoints[rank] = endpoint

    # --- what clients do ---------------------------------------------------------------------------------------------

    def open_session(self, session: str) -> None:
        self.server.send("conductor", OpenSession(session, MODEL))

    def close_session(self, session: str) -> None:
        self.server.send("conductor", CloseSession(session))

    def submit(
        self,
        request: str,
        task: str,
        rows: int = 3,
        session: str | None = None,
        deadline_ns: int | None = None,
        playback: Playback | None = None,
        criticality: str = "planning",
        **params: Any,
    ) -> None:
        image = np.random.default_rng(sum(request.encode())).normal(size=(rows, composite_model.IMAGE))
        tensors = {spec.name: image.astype(np.float32) for spec in self.model.task(task).inputs}
        checked = self.model.check_request(task, tensors, params)
        readers = self.placement.readers(MODEL, self.model.task(task).walks)
        inputs = {
            name: self.plane.put("float32", array.shape, array, [f"worker/{rank}" for rank in readers[name]])
            for name, array in tensors.items()
        }
        plain: Any = {name: list(v) if isinstance(v, tuple) else v for name, v in checked.items()}
        submit = Submit(request, MODEL, task, inputs, plain, session, deadline_ns, criticality, playback=playback)
        self.server.send("conductor", submit)

    def cancel(self, request: str) -> None:
        self.server.send("conductor", CancelRequest(request))

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def make_one_yield(self) -> None:
        """Some worker asks the conductor to suspend some walk on several ranks."""
        rank = self.rng.choice(sorted(self.workers))
        walks = [walk for walk in self.workers[rank]._table.active.values() if walk.spans_ranks]
        if walks:
            walk = self.rng.choice(walks)
            self.endpoints[rank].send("conductor", WalkYields(walk.request_id, walk.walk_id, rank))

    def kill(self, rank: int) -> None:
        """The process is gone, and the supervisor has noticed."""
        del self.workers[rank]
        self.endpoints[rank].close()
        self._conduct()
        self.conductor.worker_lost(rank, "it was killed", self.pids[rank])

    def restart(self, rank: int) -> None:
        self._new_worker(rank)
        self.settle()

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One party, any of them, does what it would do next."""
        self.num_turns += 1
        parties: list[Callable[[], None]] = [self._conduct, self._serve]
        parties += [lambda worker=worker: worker.turn(0.0) for worker in self.workers.values()]  # type: ignore[misc]
        self.rng.choice(parties)()

    def round(self) -> None:
        """Every party, in any order."""
        parties: list[Callable[[], None]] = [self._conduct, self._serve]
        parties += [lambda worker=worker: worker.turn(0.0) for worker in self.workers.values()]  # type: ignore[misc]
        self.rng.shuffle(parties)
        for party in parties:
            party()

    def _conduct(self) -> None:
        for envelope in self._conductor_inbox.receive(0.0):
            self.conductor.handle(envelope.message)

    def _emitted(self, record: Emitted) -> None:
        key = (record.name, record.iteration)
        emitted = self.emitted.setdefault(record.request_id, {})
        assert key not in emitted, f"{key} of {record.request_id} came twice"
        emitted[key] = np.array(self.plane.view(record.tensor))
        self.plane.release(record.tensor)

    def _serve(self) -> None:
        for envelope in self.server.receive(0.0):
            message = envelope.message
            if isinstance(message, EmittedGroup):
                for record in message.records:
                    self._emitted(record)
            elif isinstance(message, Emitted):
                self._emitted(message)
            elif isinstance(message, Finished | RequestFailed):
                assert message.request_id not in self.ends, f"{message.request_id} ended twice"
                self.ends[message.request_id] = message
            elif isinstance(message, Release):
                self.plane.on_release(message)
            elif isinstance(message, WarmUp):
                self.server.send("conductor", Warmed(message.model, message.generation))
            elif isinstance(message, PeerGone):
                self.plane.forget_peer(message.address)
            else:
                assert isinstance(message, SessionOpened | ServingState), message

    def run(self, requests: Sequence[str], limit: int = 3000) -> None:
        """Until all of them have ended and every message is read."""
        for _ in range(limit):
            if all(request in self.ends for request in requests):
                self.settle()
                return
            self.turn()
        waiting = [request for request in requests if request not in self.ends]
        raise AssertionError(
            f"{waiting} not over after {limit} turns: {{rank: worker.stats() for rank, worker in self.workers.items()}}"
        )

    def settle(self, rounds: int = 8) -> None:
        for _ in range(rounds):
            self.round()

    def finished_names(self) -> list[str]:
        return [name for name, end in self.ends.items() if isinstance(end, Finished)]

    def refused(self) -> list[str]:
        return [name for name, end in self.ends.items() if isinstance(end, RequestFailed)]

    def values(self, request: str) -> dict[str, list[np.ndarray]]:
        """Emitted tensors by name, in the order of iterations."""
        by_name: dict[str, list[np.ndarray]] = {}
        for (name, _), value in sorted(self.emitted.get(request, {}).items()):
            by_name.setdefault(name, []).append(value)
        return by_name

    def finished(self, request: str) -> Finished:
        end = self.ends[request]
        assert isinstance(end, Finished), end
        return end

    def failed(self, request: str) -> RequestFailed:
        end = self.ends[request]
        assert isinstance(end, RequestFailed), end
        return end

    def assert_clean(self, after_a_death: bool = False) -> None:
        """Nothing is left anywhere. Releases for what a dead peer held may come late; otherwise none is unknown."""
        self.settle()
        assert self.plane.num_held_bytes == 0
        for rank, worker in self.workers.items():
            stats, table = worker.stats(), worker._table
            held = {name: value for name, value in stats.items() if name.startswith("pages_held/")}
            assert sum(held.values()) == len(self.spare.get(rank, ())), (rank, held)
            for name in (
                "active_walks", "finished_parts", "ready_units", "early_messages", "shared_memory_held_bytes", "scopes",
                "waiting_for_room",
            ):  # fmt: skip
                assert stats[name] == 0, (rank, name, stats)
            assert not table.finished, (rank, table.finished)
            assert not table.ages
            assert not table.refused
            assert not table.stalled
            assert not len(table.waiters)
            assert self.loaded[rank].memory.num_scopes == 0, rank
            if not after_a_death:
                assert self.worker_planes[rank].num_unknown_releases == 0, rank
        if not after_a_death:
            assert self.plane.num_unknown_releases == 0


def same(got: dict[str, list[np.ndarray]], expected: dict[str, list[np.ndarray]]) -> None:
    """Equal up to the order of sums in batched products."""
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert [value.shape for value in got[name]] == [value.shape for value in values], name
        for one, other in zip(got[name], values, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
