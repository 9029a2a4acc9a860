"""A control session without threads and sockets: what it sends and when, and what it makes of chunks and events."""

from __future__ import annotations

import numpy as np
import pytest
from control_bench import PERIOD_NS, SEEN, Bench
from fake_policy_server import HORIZON, numbers, picture, policy_schema, rows

from mstar_rt.client.control.observation import Seen
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2


@pytest.mark.parametrize("compressed", [False, True])
def test_an_observation_that_would_end_the_connection_is_not_sent(compressed: bool) -> None:
    bench = Bench()
    opened = control_pb2.ControlOpened(session_id="s", max_message_bytes=33_200)
    bench.state.received(control_pb2.ControlResponse(opened=opened))
    bench.tick()
    assert bench.observation().seq == 1
    large = b"\xff\xd8" + bytes(300)
    seen = Seen({"top": large if compressed else picture(), "wrist": large}, [0.0, 0.0, 0.0])
    with pytest.raises(
        InvalidArgument, match="the server takes messages of 33200: give JPEG files, or set max_message"
    ):
        bench.state.send(seen)
    assert bench.sent() == []


# ---- when an observation is due


def test_one_observation_is_on_its_way_at_a_time() -> None:
    bench = Bench()
    ticks = []
    for tick in range(8):
        bench.tick()
        if sent := bench.sent():
            ticks.append((tick, sent[0].seq))
        if tick in (2, 5):
            bench.answer(bench.state._last_seq)
    assert ticks == [(0, 1), (3, 2), (6, 3)]


def test_replan_every_counts_ticks_answered_or_not() -> None:
    bench = Bench(replan_every=3)
    ticks = []
    for tick in range(10):
        bench.tick()
        ticks += [tick for _ in bench.sent()]
        if tick == 0:
            bench.answer(1)
    assert ticks == [0, 3, 6, 9]


def test_a_robot_with_nothing_to_do_does_not_wait_for_its_turn() -> None:
    bench = Bench(replan_every=6).started()
    for _ in range(2):
        bench.tick()
    assert bench.sent() == []
    bench.answer(1, rows(0, 2))  # twice: no effect
    short = Bench(replan_every=6)
    short.tick()
    short.sent()
    short.answer(1, rows(0, 2))
    for _ in range(2):
        short.tick()
    assert short.sent() == []
    assert short.tick().kind == "hold"
    assert short.observation().seq == 2


@pytest.mark.parametrize("kind", ["failed", "dropped_late", "dropped_stale", "dropped_epoch"])
def test_an_observation_without_an_answer_makes_the_next_one_due(kind: str) -> None:
    bench = Bench(replan_every=6).started(1)
    for _ in range(5):
        bench.tick()
    assert bench.observation().seq == 2
    bench.tick()
    assert bench.sent() == []
    bench.event(kind, 2)
    bench.tick()
    assert bench.observation().seq == 3
    assert bench.state.record.events[kind] == 1


def test_an_observation_that_was_not_due_waits_for_its_turn() -> None:
    bench = Bench(replan_every=3).started(3)
    assert bench.state._last_seq == 2
    bench.event("not_due", 2)
    bench.tick()
    assert bench.sent() == []


@pytest.mark.parametrize("kind", ["late", "recovering"])
def test_an_observation_that_is_still_on_its_way_after_an_event(kind: str) -> None:
    bench = Bench().started(1)
    bench.event(kind, 2)
    bench.tick()
    assert bench.sent() == []
    bench.answer(2, rows(20))
    assert bench.tick().chunk_seq == 2


def test_events_of_another_epoch_change_nothing() -> None:
    bench = Bench(epoch=4).started(1)
    bench.event("failed", 2, epoch=3, detail="long ago")
    bench.tick()
    assert bench.sent() == []
    assert bench.state.problem is None


def test_a_slow_transport_gets_the_newest_observation_only() -> None:
    bench = Bench(replan_every=1).started()
    for _ in range(4):
        bench.tick()
    newest = bench.observation()
    assert newest.seq == 5
    assert [(each.seq, each.replaced_by) for each in bench.state.events if each.kind == "overwritten"] == [
        (2, 3), (3, 4), (4, 5),
    ]  # fmt: skip
    bench.answer(5, rows(50))
    assert bench.state.latest.num_consumed == 1  # type: ignore[union-attr]


# ---- what an observation says


def test_it_says_what_is_executed() -> None:
    bench = Bench().started(3)
    bench.tick()
    bench.answer(2, rows(20))  # made before the first of 4 actions
    bench.tick()
    third = bench.observation()
    assert (third.seq, third.executed_chunk_seq, third.executed_index) == (3, 2, 3)
    assert third.client_time_ns == bench.clock.now_ns() - PERIOD_NS
    for _ in range(10):
        bench.tick()
    assert bench.state.queue.executed_index == HORIZON - 1
    assert bench.state.record.starvation_ticks == 7


def test_masked_cameras_and_noise_are_said() -> None:
    bench = Bench()
    noise = np.ones((HORIZON, 2))
    bench.state.act(Seen({"top": picture()}, np.zeros(3), masked_cameras=["wrist"], noise=noise))
    observation = bench.observation()
    assert (list(observation.images), list(observation.masked_cameras)) == (["top"], ["wrist"])
    assert numbers(observation.noise) == noise.tolist()
    assert numbers(observation.state) == [0, 0, 0]
    image = observation.images["top"]
    assert (image.encoding, image.height, image.width, image.channels) == (1, 8, 8, 3)


@pytest.mark.parametrize(("start", "encoding"), [(b"\xff\xd8\xff\xe0", 2), (b"\x89PNG\r\n", 3)])
def test_pictures_may_be_files(start: bytes, encoding: int) -> None:
    bench = Bench()
    bench.state.act(Seen({"top": start + b"rest", "wrist": start}, np.zeros(3)))
    image = bench.observation().images["top"]
    assert (image.encoding, image.data, image.HasField("height")) == (encoding, start + b"rest", False)


# ---- chunks


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (np.full((HORIZON, 2), np.nan, np.float32), "the chunk holds NaN or infinity: none of it is executed"),
        (np.zeros((HORIZON, 3), np.float32), r"shape \[8, 3\], expected floating \[n, 2\]"),
        (np.zeros((0, 2), np.float32), r"shape \[0, 2\]"),
        (np.zeros((HORIZON, 2), np.int32), "the chunk is int32"),
    ],
)
def test_a_chunk_that_is_no_good_is_refused(actions: np.ndarray, sentence: str) -> None:
    bench = Bench()
    bench.tick()
    bench.sent()
    bench.answer(1, actions)
    held = bench.tick()
    assert held.kind == "hold"
    assert bench.state.events[-1].kind == "refused"
    with pytest.raises(InvalidArgument, match=sentence):
        raise bench.state.problem  # type: ignore[misc]
    assert bench.state._last_seq == 2, "and another one is asked for"


def test_what_is_recorded() -> None:
    bench = Bench().started(3)
    bench.answer(2, rows(20))
    for _ in range(2):
        bench.tick()
    stats = bench.state.record.snapshot()
    assert (stats.num_ticks, stats.num_actions, stats.waiting_ticks, stats.starvation_ticks) == (6, 5, 1, 0)
    assert stats.seam_jumps.tolist() == [20]
    assert stats.steps.tolist() == [1, 1, 21, 1]
    assert stats.delays.tolist() == [0, 3]
    assert stats.action_ages_s.round(3).tolist() == [0.05, 0.1, 0.15, 0.15, 0.2]
    assert stats.chunk_latencies_s.round(3).tolist() == [0.05, 0.15]
    assert (stats.chunks, stats.num_observations, stats.num_connections) == ({"used": 2}, 3, 1)


def test_the_newest_chunk_is_told_whole() -> None:
    bench = Bench()
    bench.tick()
    bench.answer(1, delay_assumed=2, num_denoise_steps=5, request_id="r-1", flags=["cold"])
    latest = bench.state.latest
    assert latest is not None
    assert (latest.seq, latest.epoch, latest.delay_assumed, latest.num_denoise_steps) == (1, 0, 2, 5)
    assert (latest.request_id, latest.flags, latest.instruction, latest.latency_s) == ("r-1", ("cold",), "push", 0.05)
    assert latest.actions.tolist() == rows(0).tolist()
    assert bench.state.record.snapshot().denoise_steps == {5: 1}


# ---- the connection


def test_the_default_age_is_twice_what_a_chunk_lasts() -> None:
    policy = policy_info(policy_schema())
    limits = [
        ControlSettings(model="toy", control_hz=hz, instruction="push", max_action_age_s=age).age_limit_s(policy)
        for hz, age in ((2.0, None), (50.0, None), (2.0, 0.5))
    ]
    assert limits == [8.0, 1.0, 0.5]


def test_an_answer_that_never_comes_is_not_waited_for_for_ever() -> None:
    """The server lives, but has lost an observation: its chunk would be too old to be executed anyway."""
    bench = Bench(max_action_age_s=0.5)
    ticks = []
    for tick in range(25):
        bench.tick()
        ticks += [tick for _ in bench.sent()]
    assert ticks == [0, 11, 22]


def test_an_event_that_this_version_does_not_know_is_told_and_changes_nothing() -> None:
    bench = Bench().started(1)
    bench.state.received(control_pb2.ControlResponse(event=control_pb2.ControlEvent(kind=99, seq=2)))  # type: ignore[arg-type]
    assert bench.state.events[-1].kind == "unknown"
    bench.answer(2, rows(20))
    assert bench.tick().chunk_seq == 2


def test_a_chunk_that_is_too_old_to_be_executed_still_tells_where_the_robot_is() -> None:
    bench = Bench(max_action_age_s=0.2)
    for _ in range(6):
        bench.tick()
    assert [each.seq for each in bench.sent()] == [2]
    bench.answer(1)
    assert bench.state.record.chunks == {"older": 1}, "it never left: the transport was slow"
    slow = Bench(max_action_age_s=0.2)
    slow.tick()
    slow.sent()
    for _ in range(5):
        slow.tick()
    assert slow.observation().seq == 2
    slow.answer(1)
    assert slow.tick().kind == "stop"
    assert slow.state.queue.newest_seq == 1
    slow.answer(2, rows(20))
    assert slow.tick().chunk_seq == 2


@pytest.mark.parametrize("replan_every", [None, 4])
def test_a_policy_with_a_history_is_sent_every_tick(replan_every: int | None) -> None:
    bench = Bench(num_observations=2, replan_every=replan_every)
    for seq in range(1, 6):
        bench.tick()
        assert [observation.seq for observation in bench.sent()] == [seq]


@pytest.mark.parametrize("num_ticks_before", [0, 1])
def test_an_observation_that_does_not_fit_is_refused_in_any_tick(num_ticks_before: int) -> None:
    bench = Bench()
    for _ in range(num_ticks_before):
        bench.tick()
        bench.sent()
    with pytest.raises(InvalidArgument, match="state holds NaN"):
        bench.state.act(Seen(SEEN.images, [0.0, np.nan, 0.0]))
    with pytest.raises(InvalidArgument, match=r"the image of camera 'top' is float32"):
        bench.state.act(Seen({**SEEN.images, "top": picture().astype(np.float32)}, SEEN.state))
    assert not bench.sent()
    bench.tick()


def test_new_flags_of_a_chunk_are_an_event() -> None:
    bench = Bench()
    for seq, flags in enumerate(([], ["unknown_words"], ["unknown_words"], []), start=1):
        bench.state.send(SEEN)
        bench.answer(seq, flags=flags)
    assert [(event.seq, event.detail) for event in bench.state.events if event.kind == "flagged"] == [
        (2, "unknown_words")
    ]


def test_fewer_steps_are_counted_and_no_event() -> None:
    """An anytime session on a busy server would have one for every other chunk."""
    bench = Bench()
    for seq, flags in enumerate(
        (["fewer_steps"], [], ["fewer_steps", "odd"], ["odd"], ["odd", "fewer_steps"]), start=1
    ):
        bench.state.send(SEEN)
        bench.answer(seq, flags=flags)
    assert bench.state.latest is not None
    assert bench.state.latest.flags == ("odd", "fewer_steps")
    assert [(event.seq, event.detail) for event in bench.state.events if event.kind == "flagged"] == [(3, "odd")]


@pytest.mark.parametrize("instruction", ["", "  "])
def test_an_instruction_without_a_word_is_refused(instruction: str) -> None:
    with pytest.raises(FailedPrecondition, match="takes an instruction: give one"):
        Bench(instruction=instruction)
    with pytest.raises(InvalidArgument, match="the instruction is empty"):
        Bench().state.set_instruction(instruction)
