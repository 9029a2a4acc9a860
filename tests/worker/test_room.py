"""Messages that find no room in shared memory: they wait for it, in turn, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.clock import ManualClock
from mstar_rt.errors import SharedMemoryExhausted
from mstar_rt.message import Release, TensorRef
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.parcels import Parcels
from mstar_rt.worker.room import MAX_WAIT_S, Delivery, Room
from tests.worker.many_ranks import LEAST_BYTES, PLACEMENTS, ManyRanks, same
from tests.worker.test_many_ranks import SPREAD, alone, params_of, requests_drawn

pytestmark = pytest.mark.usefixtures("through_shared_memory")

ARENA_BYTES = 4096
TASKS = ["generate", "speak", "denoise"]
Drawn = list[tuple[str, int, int]]


class Plug:
    """Keeps all but `num_free` bytes of a rank's shared memory, until it is pulled."""

    def __init__(self, ranks: ManyRanks, rank: int, num_free: int = 0) -> None:
        self._ranks, self._rank = ranks, rank
        ranks.settle()
        plane = ranks.worker_planes[rank]
        data = np.zeros(plane._allocator.num_free_bytes - num_free, np.uint8)
        ref = plane.put("uint8", data.shape, data, ["plug"])
        assert ref.segment is not None
        self._block_id = ref.segment.block_id

    def pull(self) -> None:
        self._ranks.server.send(f"worker/{self._rank}", Release("plug", [self._block_id]))
        self._ranks.settle()


def num_waiting(ranks: ManyRanks, rank: int) -> float:
    return ranks.workers[rank].stats()["waiting_for_room"]


def assert_as_alone(ranks: ManyRanks, name: str, task: str, rows: int = 3, steps: int = 4) -> None:
    ranks.finished(name)
    same(ranks.values(name), alone(task, rows, steps, name))


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(PLACEMENTS)),
    requests_drawn,
    st.integers(0, 2**32),
    st.sampled_from([LEAST_BYTES, ARENA_BYTES]),
)
def test_any_company_in_little_memory_gives_what_one_request_alone_gives(
    placement: str, drawn: Drawn, seed: int, arena_bytes: int
) -> None:
    ranks = ManyRanks(placement, seed, arena_bytes=arena_bytes)
    names = [f"r{index}" for index in range(len(drawn))]
    for name, (task, rows, steps) in zip(names, drawn, strict=True):
        ranks.submit(name, task, rows, **params_of(task, steps))
    ranks.run(names)
    for name, (task, rows, steps) in zip(names, drawn, strict=True):
        assert_as_alone(ranks, name, task, rows, steps)
    ranks.assert_clean()


@settings(max_examples=15)
@given(st.sampled_from(SPREAD), st.integers(5, 9), st.integers(0, 2**32))
def test_short_of_pages_and_of_memory_every_request_ends_and_most_are_served(
    placement: str, num_pages: int, seed: int
) -> None:
    ranks = ManyRanks(placement, seed, pages=num_pages, arena_bytes=ARENA_BYTES)
    wanted = {f"r{index}": (1 + index % 4, 9 + index % 4) for index in range(2 * num_pages)}
    for name, (rows, steps) in wanted.items():
        ranks.submit(name, "generate", rows, **params_of("generate", steps))
    for _ in range(8000):
        ranks.turn()
        ranks.clock.advance_ns(10_000_000)
    ranks.run(list(wanted))
    for name, (rows, steps) in wanted.items():
        if name in ranks.refused():
            assert ranks.failed(name).code == "RESOURCE_EXHAUSTED"
        else:
            assert_as_alone(ranks, name, "generate", rows, steps)
    assert len(ranks.finished_names()) > len(wanted) // 2
    ranks.assert_clean()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("task", TASKS)
def test_a_walk_that_waits_runs_nothing_and_goes_on_as_if_it_had_not(placement: str, task: str) -> None:
    ranks = ManyRanks(placement, 1, arena_bytes=1 << 16)
    plugs = [Plug(ranks, rank) for rank in ranks.workers]
    ranks.submit("r", task, **params_of(task, 4))
    ranks.settle(20)
    assert "r" not in ranks.ends
    assert sum(num_waiting(ranks, rank) for rank in ranks.workers)
    num_steps = [worker.stats()["units_total"] for worker in ranks.workers.values()]
    ranks.settle(20)
    assert [worker.stats()["units_total"] for worker in ranks.workers.values()] == num_steps
    for plug in plugs:
        plug.pull()
    ranks.run(["r"])
    assert_as_alone(ranks, "r", task)
    ranks.assert_clean()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("task", TASKS)
def test_a_cancel_while_it_waits_leaves_nothing(placement: str, task: str) -> None:
    for num_before in range(0, 60, 6):
        ranks = ManyRanks(placement, num_before, arena_bytes=1 << 16)
        plugs = [Plug(ranks, rank, num_free=512) for rank in ranks.workers]
        for name in ("gone", "stays"):
            ranks.submit(name, task, **params_of(task, 4))
        for _ in range(num_before):
            ranks.turn()
        ranks.cancel("gone")
        for plug in plugs:
            plug.pull()
        ranks.run(["gone", "stays"])
        assert_as_alone(ranks, "stays", task)
        ranks.assert_clean()


@pytest.mark.parametrize("placement", ["one rank", "all apart"])
def test_whoever_waits_too_long_is_refused_and_the_next_served(placement: str) -> None:
    ranks = ManyRanks(placement, arena_bytes=1 << 16)
    plug = Plug(ranks, 0)
    ranks.submit("r", "denoise", **params_of("denoise", 4))
    ranks.settle(20)
    ranks.clock.advance_ns(int(MAX_WAIT_S * 1e9) - 1)
    ranks.settle()
    assert "r" not in ranks.ends
    assert 0 < ranks.workers[0]._wait_s(1.0) < 1e-8
    ranks.clock.advance_ns(1)
    ranks.run(["r"])
    assert ranks.failed("r").code == "RESOURCE_EXHAUSTED"
    assert "in shared memory" in ranks.failed("r").message
    assert "in 10 s nobody read enough of it" in ranks.failed("r").message
    plug.pull()
    ranks.submit("next", "denoise", **params_of("denoise", 4))
    ranks.run(["next"])
    assert_as_alone(ranks, "next", "denoise")
    ranks.assert_clean()


def test_a_deadline_ends_the_wait() -> None:
    ranks = ManyRanks("all apart", arena_bytes=1 << 16)
    plug = Plug(ranks, 0)
    ranks.submit("r", "denoise", deadline_ns=1000, **params_of("denoise", 4))
    ranks.settle(20)
    assert ranks.workers[0]._wait_s(1.0) == pytest.approx(999e-9)
    ranks.clock.advance_ns(1000)
    ranks.run(["r"])
    assert ranks.failed("r").code == "DEADLINE_EXCEEDED"
    assert "the room or the turn that it waited for" in ranks.failed("r").message
    assert num_waiting(ranks, 0) == 0
    plug.pull()
    ranks.assert_clean()


def test_who_comes_when_all_has_been_read_and_others_still_wait_is_not_refused() -> None:
    plane = InProcessPlanes().plane(InProcessHub().endpoint("worker/0"), ARENA_BYTES)
    room, sent, given_up = Room(plane, ManualClock()), [], []

    def put(num_bytes: int) -> TensorRef:
        return plane.put("uint8", (num_bytes,), bytes(num_bytes), ["reader"])

    def delivery(name: str) -> Delivery:
        return Delivery(lambda: sent.append((name, put(3000))), given_up.append, None, SharedMemoryExhausted("no room"))

    unread = put(4000)
    room.wait(delivery("first"))
    assert unread.segment is not None
    plane.on_release(Release("reader", [unread.segment.block_id]))
    room.wait(delivery("second"))
    room.came = True
    room.try_again(0)
    assert [name for name, _ in sent] == ["first"]
    assert len(room) == 1
    assert not given_up


@pytest.mark.parametrize("is_held", [False, True])
def test_what_could_never_fit_is_refused_at_once(is_held: bool) -> None:
    ranks = ManyRanks("encoder apart", arena_bytes=256)
    if is_held:
        Plug(ranks, 0)
    ranks.submit("r", "generate", 20, **params_of("generate", 2))
    ranks.run(["r"])
    assert ranks.failed("r").code == "INVALID_ARGUMENT"
    assert "even alone: no room for" in ranks.failed("r").message
    assert "which has 192 in all" in ranks.failed("r").message
    assert "raise workers.shared_memory_mb" in ranks.failed("r").message
    if not is_held:
        ranks.assert_clean()


def test_several_that_together_never_fit_are_refused_once_nothing_else_is_there() -> None:
    plane = InProcessPlanes().plane(InProcessHub().endpoint("worker/0"), ARENA_BYTES)
    room, given_up = Room(plane, ManualClock()), []

    def send() -> None:
        parcels = Parcels(plane)
        for _ in range(2):
            parcels.add(torch.zeros(3000, dtype=torch.uint8), "reader")
        parcels.put()

    unread = plane.put("uint8", (100,), bytes(100), ["reader"])
    room.wait(Delivery(send, given_up.append, None, SharedMemoryExhausted("no room")))
    room.came = True
    room.try_again(0)
    assert len(room) == 1
    assert unread.segment is not None
    plane.on_release(Release("reader", [unread.segment.block_id]))
    room.came = True
    room.try_again(0)
    assert not len(room)
    assert [error.code for error in given_up] == ["INVALID_ARGUMENT"]
    assert plane.num_held_bytes == 0


@pytest.mark.parametrize("placement", SPREAD)
def test_what_a_session_keeps_on_another_rank_waits_for_room_too(placement: str) -> None:
    ranks, one = (ManyRanks(name, arena_bytes=1 << 16) for name in (placement, "one rank"))
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("look", "look", {}),
        ("hear", "listen", {}),
        ("answer", "answer", params_of("generate", 4)),
        ("hear again", "listen", {}),
    ]
    for deployment in (ranks, one):
        deployment.open_session("s")
        for name, task, params in requests:
            plugs = [Plug(deployment, rank) for rank in deployment.workers]
            deployment.submit(name, task, session="s", **params)
            deployment.settle(20)
            for plug in plugs:
                plug.pull()
            deployment.run([name])
            deployment.finished(name)
    for name, _, _ in requests:
        same(ranks.values(name), one.values(name))
    ranks.close_session("s")
    ranks.assert_clean()


def test_an_answer_to_another_rank_that_finds_no_room_is_missing_in_the_end() -> None:
    ranks = ManyRanks("all apart", arena_bytes=1 << 16)
    ranks.open_session("s")
    ranks.submit("look", "look", session="s")
    ranks.run(["look"])
    plug = Plug(ranks, 0)
    ranks.submit("answer", "answer", session="s", **params_of("generate", 2))
    ranks.settle(20)
    assert num_waiting(ranks, 0)
    assert "answer" not in ranks.ends
    ranks.clock.advance_ns(int(MAX_WAIT_S * 1e9))
    ranks.run(["answer"])
    assert ranks.failed("answer").code == "UNAVAILABLE"
    plug.pull()
    ranks.close_session("s")
    ranks.assert_clean()


def test_the_first_of_its_class_is_not_passed_by_who_needs_less() -> None:
    ranks = ManyRanks("encoder apart", arena_bytes=ARENA_BYTES)
    plug = Plug(ranks, 0, num_free=400)
    ranks.submit("large", "generate", 20, criticality="generation", **params_of("generate", 4))
    ranks.settle(20)
    assert num_waiting(ranks, 0) == 1
    ranks.submit("small", "generate", 1, criticality="generation", **params_of("generate", 4))
    ranks.submit("urgent", "generate", 1, **params_of("generate", 4))
    ranks.settle(30)
    assert ranks.ends.keys() == {"urgent"}
    assert num_waiting(ranks, 0) == 2
    plug.pull()
    ranks.run(["large", "small"])
    assert_as_alone(ranks, "large", "generate", 20)
    assert_as_alone(ranks, "small", "generate", 1)
    assert_as_alone(ranks, "urgent", "generate", 1)
    ranks.assert_clean()
