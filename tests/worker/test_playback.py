"""Streams that somebody listens to: when a player runs dry, and what the scheduler makes of it."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from many_ranks import ManyRanks

from mstar_rt.message import Playback
from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.playback import FIRST_SOUND_NS, LATE_NS, Player
from mstar_rt.worker.scheduler import NUM_LOOKED_AT, Scheduler
from mstar_rt.worker.unit import Unit

MS = 1_000_000
RATE_HZ = 24_000
FRAME = 2048  # samples
HEARD = Playback("audio", RATE_HZ, 0.25)


def player(buffer_s: float = 0.0, begun_ns: int = 0) -> Player:
    return Player(Playback("audio", RATE_HZ, buffer_s), begun_ns)


# ---- the player


def test_slack_is_what_was_made_and_the_buffer_less_the_time_since_the_first_sound() -> None:
    ours = player(buffer_s=0.5)
    assert ours.sound(RATE_HZ, 1_000 * MS, 0) == 2_500 * MS
    assert ours.sound(RATE_HZ // 2, 1_700 * MS, 0) == 3_000 * MS
    assert ours.sound(FRAME, 1_800 * MS, 0) == pytest.approx(3_000 * MS + FRAME / RATE_HZ * 1e9, abs=1)


def test_who_ran_dry_plays_on_from_the_next_sound() -> None:
    ours = player()
    assert ours.sound(RATE_HZ // 10, 1_000 * MS, 0) == 1_100 * MS
    assert ours.sound(RATE_HZ // 10, 5_000 * MS, 0) == 5_100 * MS


@settings(max_examples=40)
@given(st.floats(0, 3), st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 200_000)), min_size=1, max_size=20))
def test_a_player_is_never_ahead_of_what_was_made(buffer_s: float, sounds: list[tuple[int, int]]) -> None:
    """It runs dry no earlier with each sound, and holds no more than was made and the buffer."""
    ours, now_ns, made_ns, first_ns, last_ns = player(buffer_s), 0, 0.0, None, 0
    for wait_ms, num_samples in sounds:
        now_ns += wait_ms * MS
        first_ns = now_ns if first_ns is None else first_ns
        made_ns += num_samples / RATE_HZ * 1e9
        dry_ns = ours.sound(num_samples, now_ns, 0)
        assert dry_ns > last_ns
        by_formula_ns = first_ns + buffer_s * 1e9 + made_ns
        assert dry_ns >= by_formula_ns - len(sounds) - 1
        assert dry_ns <= now_ns + buffer_s * 1e9 + made_ns + 1
        last_ns = dry_ns


def test_a_unit_is_due_so_early_that_the_next_sound_can_be_in_time() -> None:
    ours = player()
    assert ours.due_ns(0, 0) == FIRST_SOUND_NS
    assert ours.due_ns(FIRST_SOUND_NS + 1, 50 * MS) == FIRST_SOUND_NS + 1 + LATE_NS
    ours.sound(RATE_HZ, 100 * MS, ran_ns=60 * MS)  # is played until 1100; the next one takes 60 as well
    assert ours.due_ns(100 * MS, 60 * MS) == 1_040 * MS
    assert ours.due_ns(200 * MS, 80 * MS) == 1_060 * MS
    assert ours.due_ns(1_090 * MS, 110 * MS) == 1_090 * MS
    assert ours.due_ns(1_091 * MS, 110 * MS) == 1_091 * MS + LATE_NS, "too late: behind those that can be in time"


# ---- the order


def unit(
    name: str, due_ms: float | None = None, node: str = "n", order: int = 0, soft: bool = True, **fields: Any
) -> Unit[str]:
    due_ns = None if due_ms is None else int(due_ms * MS)
    made: Unit[str] = Unit(name, ("m", node), None, "generation", order, 0, 0, name, due_ns, **fields)
    made.is_soft = soft and due_ns is not None
    made.remaining_ns = fields.get("remaining_ns", 10 * MS)
    return made


@functools.cache
def costs(*nodes: str, alone_ms: float = 10, each_ms: float = 1) -> CostModel:
    model = CostModel()
    for node in nodes:
        for size in range(1, 9):
            for _ in range(2):
                model.observe(("m", node), None, size, int((alone_ms + each_ms * (size - 1)) * MS))
    return model


def order_of(scheduler: Scheduler[str], now_ms: float = 0) -> list[str]:
    ran: list[str] = []
    while len(scheduler):
        decision = scheduler.next_batch(int(now_ms * MS))
        assert not decision.dropped
        ran += [each.work for each in decision.batch]
    return ran


def test_a_stream_that_is_about_to_run_dry_outranks_one_with_seconds_in_hand() -> None:
    scheduler: Scheduler[str] = Scheduler(1, costs("decode", "codec"))
    scheduler.add([unit("rich", 3_000, "decode", 0), unit("poor", 5, "codec", 1), unit("fair", 800, "decode", 0)])
    assert order_of(scheduler) == ["poor", "fair", "rich"]


def test_it_outranks_text_that_nobody_listens_to_and_text_has_its_turn_in_between() -> None:
    scheduler: Scheduler[str] = Scheduler(1, costs("decode", "codec"))
    scheduler.add([unit("text", None, "decode", 0), unit("poor", 5, "codec", 1), unit("rich", 3_000, "codec", 1)])
    assert order_of(scheduler) == ["poor", "text", "rich"]


def test_streams_that_are_late_for_ever_do_not_starve_text() -> None:
    scheduler: Scheduler[str] = Scheduler(1, costs("decode", "codec"), patience=8)
    scheduler.add([unit("text", None, "decode", 0)] + [unit(f"late{i}", 0, "codec", 1) for i in range(4)])
    for step in range(1, 12):
        (first,) = scheduler.next_batch(step * 10 * MS).batch
        if first.work == "text":
            break
        scheduler.add([unit(first.work, step * 10, "codec", 1)])
    assert first.work == "text"
    assert step > 5


def test_all_that_listen_share_a_step_however_close_it_is() -> None:
    """A batch that is cut would make everybody later, and nobody is failed for being late."""
    scheduler: Scheduler[str] = Scheduler(8, costs("decode", each_ms=5))
    scheduler.add([unit(f"s{i}", 12 + i, "decode") for i in range(8)])
    assert len(scheduler.next_batch(0).batch) == 8


def test_a_batch_of_others_is_cut_for_who_is_about_to_run_dry() -> None:
    scheduler: Scheduler[str] = Scheduler(8, costs("decode", "codec", each_ms=40))
    scheduler.add([unit("poor", 145, "codec", 1)] + [unit(f"text{i}", None, "decode") for i in range(8)])
    assert len(scheduler.next_batch(0).batch) == 4, "10, 50, 90 and 130 ms, then 10 for the codec"


deadlines = st.one_of(st.none(), st.integers(-500, 500))
ready = st.lists(st.tuples(deadlines, st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=40)
@given(ready, st.integers(1, 8), st.integers(0, 500))
def test_soft_deadlines_drop_nobody_and_lose_nobody(
    units: list[tuple[int | None, str, int]], max_batch: int, now_ms: int
) -> None:
    scheduler: Scheduler[str] = Scheduler(max_batch, costs("a", "b"))
    scheduler.add([unit(str(i), due, node, order) for i, (due, node, order) in enumerate(units)])
    assert sorted(order_of(scheduler, now_ms), key=int) == [str(i) for i in range(len(units))]


def hard(name: str, deadline_ms: int, node: str = "n") -> Unit[str]:
    return unit(name, deadline_ms, node, 2, soft=False, drop_after_ns=deadline_ms * MS)


def test_no_silence_is_worth_a_deadline() -> None:
    scheduler: Scheduler[str] = Scheduler(1, costs("decode", "codec", "text"))
    scheduler.add([unit("poor", 5, "codec"), unit("poorer", 4, "decode"), hard("answer", 15, "text")])
    assert order_of(scheduler) == ["answer", "poorer", "poor"]
    scheduler.add([unit("poor", 5, "codec"), unit("poorer", 4, "decode"), hard("answer", 150, "text")])
    assert order_of(scheduler) == ["poorer", "poor", "answer"]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(20, 400), st.booleans()), min_size=1, max_size=NUM_LOOKED_AT), st.integers(1, 4))
def test_whoever_makes_a_deadline_alone_makes_it_beside_any_number_of_listeners(
    drawn: list[tuple[int, bool]], num_listeners: int
) -> None:
    """One after another, 10 ms each, where each node is of its own; of more deadlines the later ones are not seen."""

    def late(with_listeners: bool) -> int:
        scheduler: Scheduler[str] = Scheduler(1, costs(*[f"n{i}" for i in range(len(drawn))], "codec"))
        scheduler.add([hard(f"h{i}", deadline_ms, f"n{i}") for i, (deadline_ms, _) in enumerate(drawn)])
        if with_listeners:
            scheduler.add([unit(f"s{i}", -i, "codec") for i in range(num_listeners)])
        now_ms, num_late = 0, 0
        while len(scheduler):
            decision = scheduler.next_batch(now_ms * MS)
            num_late += len(decision.dropped)
            now_ms += 10 * bool(decision.batch)
            num_late += sum(not each.is_soft and now_ms * MS > (each.deadline_ns or 0) for each in decision.batch)
        return num_late

    if not late(with_listeners=False):
        assert late(with_listeners=True) == 0


# ---- streams over time


@dataclass(eq=False)
class Stream:
    """`num_steps` of decoding make a sound of `sound_ms`, after one step of the codec."""

    name: str
    begun_ms: int
    num_steps: int
    sound_ms: int
    buffer_s: float
    player: Player
    step: int = 0
    ran_ns: int = 0
    dry_ns: int | None = None
    num_sounds: int = 0
    num_gaps: int = 0


def played(streams: list[Stream], listens: bool, until_ms: int = 20_000, num_texts: int = 0) -> list[Stream]:
    """What becomes of streams on one worker, a step at a time, 10 ms each, beside texts that never end."""
    scheduler: Scheduler[Stream | None] = Scheduler(1, costs("decode", "codec", "text"))
    waiting, now_ns, arrival = sorted(streams, key=lambda each: each.begun_ms), 0, 0

    def add(stream: Stream) -> None:
        nonlocal arrival
        arrival += 1
        node = "codec" if stream.step == stream.num_steps else "decode"
        due_ns = stream.player.due_ns(now_ns, stream.ran_ns) if listens else None
        made: Unit[Stream | None] = Unit(
            stream.name, ("m", node), None, "generation", int(node == "codec"), arrival, now_ns, stream, due_ns,
            client=stream.name, walk_key="speech",
        )  # fmt: skip
        made.is_soft, made.remaining_ns = listens, 10 * MS
        scheduler.add_one(made)

    def add_text(name: str) -> None:
        nonlocal arrival
        arrival += 1
        scheduler.add_one(
            Unit(name, ("m", "text"), None, "generation", 0, arrival, now_ns, None, client=name, walk_key="chat")
        )

    for i in range(num_texts):
        add_text(f"text{i}")
    while now_ns < until_ms * MS:
        while waiting and waiting[0].begun_ms * MS <= now_ns:
            add(waiting.pop(0))
        decision = scheduler.next_batch(now_ns)
        now_ns += 10 * MS
        if not decision.batch:
            continue
        scheduler.ran(decision.batch, 10 * MS)
        (ran,) = decision.batch
        if (stream := ran.work) is None:
            add_text(ran.request_id)
            continue
        stream.ran_ns += 10 * MS
        stream.step += 1
        if stream.step > stream.num_steps:
            if stream.dry_ns is not None and now_ns > stream.dry_ns:
                stream.num_gaps += 1
            stream.dry_ns = stream.player.sound(stream.sound_ms * RATE_HZ // 1000, now_ns, stream.ran_ns)
            stream.step, stream.num_sounds = 0, stream.num_sounds + 1
        add(stream)
    return streams


def crowd(seed: int = 0) -> list[Stream]:
    """Quick ones that take most of what they get, and slow ones whose every sound takes long."""
    streams = [Stream(f"quick{i}", 40 * i, 1, 400, 0.2, player(0.2, 40 * i * MS)) for i in range(3)]
    streams += [Stream(f"slow{i}", 500 + 130 * i + seed, 20, 800, 0.3, player(0.3)) for i in range(2)]
    for stream in streams[3:]:
        stream.player = player(stream.buffer_s, stream.begun_ms * MS)
    return streams


@pytest.mark.parametrize("seed", [0, 37, 70])
def test_nobody_runs_dry_while_there_is_time_for_all(seed: int) -> None:
    """They need 0.68 of the worker: 3 x 20 / 400 and 2 x 210 / 800."""
    assert sum(stream.num_gaps for stream in played(crowd(seed), listens=True)) == 0
    assert sum(stream.num_gaps for stream in played(crowd(seed), listens=False)) > 20


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 8), st.integers(0, 20)), min_size=1, max_size=5))
def test_nobody_runs_dry_at_any_mix_of_less_than_half_a_worker(drawn: list[tuple[int, int, int]]) -> None:
    streams = []
    for i, (begun_ms, num_steps, buffer) in enumerate(drawn):
        sound_ms = 10 * (num_steps + 1) * 2 * len(drawn)
        streams.append(Stream(f"s{i}", begun_ms, num_steps, sound_ms, buffer / 10, player(buffer / 10, begun_ms * MS)))
    for stream in played(streams, listens=True, until_ms=4_000):
        assert stream.num_gaps == 0, stream
        assert stream.num_sounds > 0


def test_text_takes_what_listeners_leave() -> None:
    assert sum(stream.num_gaps for stream in played(crowd(), listens=True, num_texts=3)) == 0
    assert sum(stream.num_gaps for stream in played(crowd(), listens=False, num_texts=3)) > 10


def test_one_that_can_never_be_in_time_makes_nobody_else_run_dry() -> None:
    streams = [Stream("hopeless", 0, 60, 100, 0.0, player())]
    streams += [Stream(f"s{i}", 100 * i, 6, 280, 0.3, player(0.3, 100 * i * MS)) for i in range(3)]
    ran = {stream.name: stream for stream in played(streams, listens=True)}
    assert sum(ran[f"s{i}"].num_gaps for i in range(3)) == 0
    assert ran["hopeless"].num_sounds > 4, "it gets what the others leave"


# ---- on workers


@pytest.mark.parametrize("placement", ["one rank", "branches apart"])
def test_every_rank_of_a_walk_knows_what_was_heard(placement: str) -> None:
    ranks = ManyRanks(placement)
    ranks.submit("s", "speak", playback=HEARD, criticality="generation", steps=12)
    knows, should = set(), set()
    while "s" not in ranks.ends:
        ranks.turn()
        for rank, worker in ranks.workers.items():
            if (walk := worker._table.active.get("s")) is not None:
                should.add(rank)
                if walk.player is not None and walk.player._has_begun:
                    knows.add(rank)
    ranks.run(["s"])
    assert ranks.finished("s")
    assert knows == should
    assert len(should) == (1 if placement == "one rank" else 2)
    ranks.assert_clean()


@pytest.mark.parametrize(("deadline_ms", "is_soft"), [(50, False), (10_000, True)])
def test_the_deadline_of_the_request_itself_still_counts(deadline_ms: int, is_soft: bool) -> None:
    """The nearer one orders; what is dropped, and when, is up to the request's own."""
    ranks = ManyRanks("one rank")
    ranks.submit("s", "speak", deadline_ns=deadline_ms * MS, playback=HEARD, criticality="generation", steps=4)
    units: list[Unit[Any]] = []
    while not units:
        ranks.turn()
        units = list(ranks.workers[0]._scheduler)
    (ready,) = units
    assert ready.is_soft == is_soft
    assert ready.deadline_ns == (1 + FIRST_SOUND_NS if is_soft else deadline_ms * MS)
    assert ready.drop_after_ns == deadline_ms * MS - 1
    ranks.clock.advance_ns(deadline_ms * MS)
    ranks.run(["s"])
    assert ranks.failed("s").code == "DEADLINE_EXCEEDED"
    ranks.assert_clean()


def test_only_generations_are_ordered_by_who_listens() -> None:
    """In other classes real deadlines count."""
    ranks = ManyRanks("one rank")
    ranks.submit("planned", "speak", playback=HEARD, steps=4)
    ranks.submit("generated", "speak", playback=HEARD, criticality="generation", steps=4)
    soft = set()
    while len(ranks.ends) < 2:
        ranks.turn()
        soft |= {unit.request_id for unit in ranks.workers[0]._scheduler if unit.is_soft}
    assert soft == {"generated"}
    ranks.run(["planned", "generated"])
