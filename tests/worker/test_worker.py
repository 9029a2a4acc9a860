"""One worker in-process, driven message by message: results, batching, isolation of failures, cancels, pages, deadlines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from toy_model import declare

from mstar_rt.clock import ManualClock
from mstar_rt.config import WorkerConfig
from mstar_rt.errors import CheckpointError, ConfigError
from mstar_rt.message import (
    AskStats,
    CancelRequest,
    Emitted,
    EmittedGroup,
    Message,
    ReleaseScope,
    Shutdown,
    StartWalk,
    Stats,
    WalkDone,
    WalkFailed,
)  # fmt: skip
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import load_model
from mstar_rt.worker.worker import Worker


class Rig:
    """A worker and the two ends that it talks to."""

    def __init__(self, max_batch: int = 16, pages: int | None = None) -> None:
        self.clock = ManualClock()
        model = declare("toy", "", {})
        self.loaded = load_model(model, WorkerConfig(rank=0, kv_memory_mb=1))
        if pages is not None:
            allocator = self.loaded.pools["memory"].allocator
            self.spare = allocator.allocate(allocator.num_free - pages)
        hub, planes = InProcessHub(), InProcessPlanes()
        self.server, self.conductor = hub.endpoint("server"), hub.endpoint("conductor")
        self.server_plane = planes.plane(self.server)
        endpoint = hub.endpoint("worker/0")
        self.worker_plane = planes.plane(endpoint)
        self.worker = Worker({"toy": self.loaded}, endpoint, self.worker_plane, self.clock, max_batch=max_batch)
        self.emitted: dict[str, list[np.ndarray]] = {}
        self.ends: dict[str, WalkDone | WalkFailed] = {}
        self.num_walks = 0

    def start(
        self, request: str, x: list[float] | np.ndarray, walk: str = "count", steps: int = 2, **fields: Any
    ) -> None:
        array = np.asarray(x, np.float32)
        ref = self.server_plane.put("float32", array.shape, array, ["worker/0"])
        params = {
            "steps": steps,
            "misbehave": fields.pop("misbehave", "no"),
            "leave_at": fields.pop("leave_at", 1000),
        }
        inputs = {} if walk == "recall" else {"x": ref}
        self.num_walks += 1
        num_nodes = len(self.loaded.programs[walk].nodes)
        values = {
            "walk_id": self.num_walks,
            "age": self.num_walks,
            "node_ranks": [0] * num_nodes,
            "scope": request,
            "deadline_ns": None,
            "criticality": "planning",
            "reply_to": "server",
            "anytime": False,
        }
        self.conductor.send(
            "worker/0", StartWalk(request, "toy", walk, inputs=inputs, params=params, **{**values, **fields})
        )

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.worker.turn(0.0)

    def collect(self) -> None:
        for envelope in self.server.receive(0.0):
            message: Message = envelope.message
            if isinstance(message, Emitted | EmittedGroup):
                for record in message.records if isinstance(message, EmittedGroup) else [message]:
                    array = np.array(self.server_plane.view(record.tensor))
                    self.emitted.setdefault(record.request_id, []).append(array)
                    self.server_plane.release(record.tensor)
            else:
                self.server_plane.on_release(message)  # type: ignore[arg-type]
        for envelope in self.conductor.receive(0.0):
            end = envelope.message
            assert isinstance(end, WalkDone | WalkFailed)
            assert end.request_id not in self.ends, "a request ended twice"
            self.ends[end.request_id] = end
            self.conductor.send("worker/0", ReleaseScope(end.request_id))

    def run(self, limit: int = 500) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            self.turn()
            self.collect()
            stats = self.worker.stats()
            if stats["active_walks"] == 0 and stats["ready_units"] == 0:
                return
        raise AssertionError(f"still busy after {limit} turns: {self.worker.stats()}")

    def assert_clean(self) -> None:
        self.turn()
        self.collect()
        self.turn()
        stats = self.worker.stats()
        assert stats["active_walks"] == stats["ready_units"] == 0
        assert stats["pages_held/toy/memory"] == (0 if not hasattr(self, "spare") else len(self.spare))
        assert self.server_plane.num_held_bytes == 0
        assert self.worker_plane.num_held_bytes == 0


def failed(rig: Rig, request: str) -> WalkFailed:
    end = rig.ends[request]
    assert isinstance(end, WalkFailed), end
    return end


def test_a_loop_emits_every_iteration_and_ends() -> None:
    rig = Rig()
    rig.start("a", [1.0, 2.0], steps=3)
    rig.run()
    assert [list(y) for y in rig.emitted["a"]] == [[2, 3], [3, 4], [4, 5]]
    done = rig.ends["a"]
    assert isinstance(done, WalkDone)
    assert (done.num_emitted, done.node_times["add"].num_steps, done.num_iterations) == (
        3,
        3,
        {"counting": 3},
    )
    rig.assert_clean()


def test_leaving_early() -> None:
    rig = Rig()
    rig.start("a", [0.0], steps=10, leave_at=2)
    rig.run()
    assert [y[0] for y in rig.emitted["a"]] == [1, 2, 3]


def test_large_tensors_go_through_shared_memory_both_ways() -> None:
    rig = Rig()
    x = np.arange(50_000, dtype=np.float32)
    rig.start("a", x, steps=1)
    rig.run()
    np.testing.assert_array_equal(rig.emitted["a"][0], x + 1)
    rig.assert_clean()


def test_requests_at_different_iterations_share_steps() -> None:
    rig = Rig()
    rig.start("a", [0.0], steps=6)
    rig.turn(3)
    rig.start("b", [10.0], steps=3)
    rig.run()
    done = rig.ends["b"]
    assert isinstance(done, WalkDone)
    assert done.node_times["add"].batched_with == 3
    assert [y[0] for y in rig.emitted["a"]] == [1, 2, 3, 4, 5, 6]
    assert [y[0] for y in rig.emitted["b"]] == [11, 12, 13]


def test_units_of_a_request_and_of_others_in_its_steps_are_counted_apart() -> None:
    rig = Rig()
    for request in ("a", "b", "c"):
        rig.start(request, [0.0], "twice")
    rig.run()
    done = rig.ends["b"]
    assert isinstance(done, WalkDone)
    times = [(each.num_steps, each.batched_with, each.batched_own) for each in done.node_times.values()]
    assert times == [(1, 4, 1), (1, 4, 1)]


@pytest.mark.parametrize("walk", ["count", "remember"])
def test_coalesced_equals_alone(walk: str) -> None:
    generator = np.random.default_rng(0)
    requests = {f"r{i}": (generator.normal(size=3).astype(np.float32), int(generator.integers(1, 5))) for i in range(6)}
    together, alone = Rig(), Rig()
    for name, (x, steps) in requests.items():
        together.start(name, x, walk, steps)
    together.run()
    for name, (x, steps) in requests.items():
        alone.start(name, x, walk, steps)
        alone.run()
        for got, expected in zip(together.emitted[name], alone.emitted[name], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    together.assert_clean()
    alone.assert_clean()


def test_paged_memory_is_remembered() -> None:
    rig = Rig()
    rig.start("a", [1.0, 3.0], "remember", steps=2)
    rig.run()
    # Iteration 0 holds 1 and 3: mean 2. Iteration 1 adds 3 and 3 (2 + 1 twice): mean of 1, 3, 3, 3.
    np.testing.assert_allclose(rig.emitted["a"][0], [3, 3])
    np.testing.assert_allclose(rig.emitted["a"][1], [3.5, 3.5])
    rig.assert_clean()


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("raise", "INTERNAL", "node 'add' failed (RuntimeError)"),
        ("own_error", "INVALID_ARGUMENT", "the node refuses this"),
        ("wrong_output", "INTERNAL", "node 'add' gave outputs ['z'], it declares ['y']"),
        ("bad_key", "INTERNAL", "batch_key of node 'add' failed (RuntimeError), expected something hashable"),
        (
            "bad_value",
            "INTERNAL",
            "node 'add' gave a tensor of layout torch.sparse_coo as 'y', expected a dense tensor",
        ),
    ],
)
def test_one_failure_fails_one_request(how: str, code: str, sentence: str) -> None:
    rig = Rig()
    for name in ("good1", "bad", "good2"):
        rig.start(name, [1.0], misbehave=how if name == "bad" else "no")
    rig.run()
    assert failed(rig, "bad").code == code
    assert sentence in failed(rig, "bad").message
    assert "secret" not in failed(rig, "bad").message
    assert isinstance(rig.ends["good1"], WalkDone)
    assert [y[0] for y in rig.emitted["good2"]] == [2, 3]
    rig.assert_clean()


def test_a_failure_gives_pages_back() -> None:
    rig = Rig()
    rig.start("good", [1.0], "remember")
    rig.start("bad", [1.0], "remember", misbehave="raise")
    rig.run()
    assert failed(rig, "bad").code == "INTERNAL"
    assert isinstance(rig.ends["good"], WalkDone)
    rig.assert_clean()


def test_cancel_frees_everything_within_one_step() -> None:
    rig = Rig()
    rig.start("a", [1.0] * 4, "remember", steps=15)
    rig.turn(3)
    assert rig.worker.stats()["pages_held/toy/memory"] > 0
    rig.conductor.send("worker/0", CancelRequest("a"))
    rig.turn()
    assert rig.worker.stats()["active_walks"] == 0
    rig.collect()
    assert rig.ends == {}
    rig.assert_clean()


@pytest.mark.parametrize("pages", [2, 4, 7])
def test_more_demand_than_pages_is_served_in_turn(pages: int) -> None:
    rig, alone = Rig(pages=pages), Rig()
    requests = {f"r{i}": ([float(i)] * (1 + i % 4), 1 + i % 2) for i in range(8)}
    for name, (x, steps) in requests.items():
        rig.start(name, x, "remember", steps)
    rig.run()
    for name, (x, steps) in requests.items():
        assert isinstance(rig.ends[name], WalkDone), rig.ends[name]
        alone.start(name, x, "remember", steps)
        alone.run()
        assert len(rig.emitted[name]) == steps
        for got, expected in zip(rig.emitted[name], alone.emitted[name], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    rig.assert_clean()


def test_walks_that_fill_the_pages_between_them_all_finish() -> None:
    # Each needs 3 of 4 pages and holds some before it finds the others gone.
    rig = Rig(pages=4)
    for i in range(5):
        rig.start(f"r{i}", [float(i)] * 4, "remember", steps=3)
    rig.run()
    assert all(isinstance(rig.ends[f"r{i}"], WalkDone) for i in range(5))
    assert all(len(rig.emitted[f"r{i}"]) == 3 for i in range(5))
    rig.assert_clean()


def test_a_walk_that_waits_for_pages_past_its_deadline_fails_and_can_be_cancelled() -> None:
    rig = Rig(pages=4)
    rig.start("old", [1.0] * 4, "remember", steps=3)
    rig.start("late", [1.0] * 4, "remember", steps=3, deadline_ns=1_000_000)
    rig.start("gone", [1.0] * 4, "remember", steps=3)
    rig.turn(3)
    rig.clock.advance_ns(2_000_000)
    rig.conductor.send("worker/0", CancelRequest("gone"))
    rig.run()
    assert isinstance(rig.ends["old"], WalkDone)
    assert failed(rig, "late").code == "DEADLINE_EXCEEDED"
    assert "gone" not in rig.ends
    rig.assert_clean()


def test_a_request_that_can_never_fit_is_refused_with_numbers() -> None:
    rig = Rig(pages=1)
    rig.start("big", [1.0] * 12, "remember", steps=1)
    rig.run()
    assert failed(rig, "big").code == "INVALID_ARGUMENT"
    assert "needs 3 cache pages and 1 of" in failed(rig, "big").message
    rig.assert_clean()


def test_the_refusal_does_not_wait_for_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(pages=1)
    endpoint, waits_s = rig.worker._endpoint, []
    receive = endpoint.receive

    def receive_at_once(timeout_s: float | None) -> list[Any]:
        waits_s.append(timeout_s)
        return receive(0.0)

    monkeypatch.setattr(endpoint, "receive", receive_at_once)
    rig.start("big", [1.0] * 12, "remember", steps=1)
    for _ in range(50):
        rig.worker.turn(idle_wait_s=1.0)
        rig.collect()
        if rig.ends:
            break
    assert failed(rig, "big").code == "INVALID_ARGUMENT"
    assert waits_s[1:] == [0.0] * (len(waits_s) - 1), "only the first turn had nothing to do"


def test_late_work_is_dropped_before_it_is_computed() -> None:
    rig = Rig()
    rig.start("late", [1.0], deadline_ns=1_000_000)
    rig.start("fine", [1.0], deadline_ns=10_000_000)
    rig.clock.advance_ns(2_000_000)
    rig.run()
    assert failed(rig, "late").code == "DEADLINE_EXCEEDED"
    assert "1.0 ms before node 'add'" in failed(rig, "late").message
    assert isinstance(rig.ends["fine"], WalkDone)


def test_a_deadline_is_honoured_at_every_loop_step_but_an_anytime_walk_ends_itself() -> None:
    rig = Rig()
    rig.start("strict", [1.0], steps=50, deadline_ns=1_000_000)
    rig.start("anytime", [1.0], steps=5, deadline_ns=1_000_000, anytime=True)
    rig.turn(2)
    rig.clock.advance_ns(5_000_000)
    rig.run()
    assert failed(rig, "strict").code == "DEADLINE_EXCEEDED"
    assert isinstance(rig.ends["anytime"], WalkDone)


class TickingClock(ManualClock):
    """Time passes with every look at it."""

    def now_ns(self) -> int:
        self.advance_ns(1)
        return super().now_ns()


@pytest.mark.parametrize("deadline_ns", range(1, 12))
def test_a_deadline_between_two_units_of_one_batch_ends_the_request_once(deadline_ns: int) -> None:
    rig = Rig()
    rig.worker._clock = TickingClock()
    rig.start("a", [1.0], "twice", deadline_ns=deadline_ns)
    rig.run()
    end = rig.ends["a"]
    assert isinstance(end, WalkDone) or end.code == "DEADLINE_EXCEEDED"
    assert len(rig.emitted.get("a", [])) == (2 if isinstance(end, WalkDone) else 0)
    rig.assert_clean()


def test_what_a_walk_persists_lasts_until_its_scope_is_released() -> None:
    rig = Rig()
    rig.start("k", [5.0], "keep", scope="session")
    rig.run()
    rig.start("r1", [], "recall", scope="session")
    rig.run()
    assert rig.emitted["r1"][0][0] == 5
    rig.conductor.send("worker/0", ReleaseScope("session"))
    rig.start("r2", [], "recall", scope="session")
    rig.run()
    assert failed(rig, "r2").code == "FAILED_PRECONDITION"
    assert "'kept' is not known yet, run keep first" in failed(rig, "r2").message


def test_a_bad_loop_count_is_refused() -> None:
    rig = Rig()
    rig.start("a", [1.0], steps=5000)
    rig.run()
    assert failed(rig, "a").code == "INVALID_ARGUMENT"
    rig.assert_clean()


def test_stats_and_shutdown() -> None:
    rig = Rig()
    rig.conductor.send("worker/0", AskStats("conductor", 7))
    rig.turn()
    stats = rig.conductor.receive(0.0)[0].message
    assert isinstance(stats, Stats)
    assert stats.ask_id == 7
    assert stats.values["active_walks"] == 0
    rig.conductor.send("worker/0", Shutdown())
    rig.worker.run()
    assert rig.worker.stopped


def test_loading_checks_memory() -> None:
    rig = Rig()
    rig.assert_clean()
    with pytest.raises(ConfigError, match="needs at least"):
        load_model(declare("toy", "", {"page_size": 1 << 20}), WorkerConfig(rank=0, kv_memory_mb=1))
    with pytest.raises((ConfigError, CheckpointError), match="told not to load"):
        load_model(declare("toy", "", {"refuse_to_load": True}), WorkerConfig(rank=0))


def test_a_rank_loads_its_own_nodes_and_their_pools_only() -> None:
    model = declare("toy", "", {})
    plain = load_model(model, WorkerConfig(rank=0, kv_memory_mb=1), ("add", "keep"))
    assert (set(plain.engines), set(plain.pools)) == ({"add", "keep"}, set())
    paged = load_model(model, WorkerConfig(rank=0, kv_memory_mb=1), ("remember",))
    assert (set(paged.engines), set(paged.pools)) == ({"remember"}, {"memory"})


def test_bfloat16_travels() -> None:
    from mstar_rt.worker.tensors import receive_tensor, send_tensor

    hub, planes = InProcessHub(), InProcessPlanes()
    plane = planes.plane(hub.endpoint("server"))
    value = torch.randn(3, 5).to(torch.bfloat16)
    ref = send_tensor(plane, value, ["server"])
    assert ref.dtype == "bfloat16"
    assert torch.equal(receive_tensor(plane, ref, "cpu"), value)
