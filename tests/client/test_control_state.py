"""A control session without threads and sockets: what it sends and when, on a clock that the test moves."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from fake_policy_server import HORIZON, numbers, picture, policy_schema, rows

from mstar_rt.client import RobotAction
from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.liveness import Backoff, Heartbeats
from mstar_rt.client.control.observation import Seen
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unavailable
from mstar_rt.protos import control_pb2, request_pb2
from mstar_rt.protos.arrays import tensor_from_array

SEEN = Seen({"top": picture(), "wrist": picture()}, [0.0, 0.0, 0.0])
PERIOD_NS = 50_000_000


class Bench:
    """A session at 20 Hz, opened, and the server's side of it."""

    def __init__(self, horizon: int = HORIZON, num_observations: int = 1, **settings: Any) -> None:
        self.clock = ManualClock(10**9)
        given = {"model": "toy", "control_hz": 20.0, "instruction": "push", "max_action_age_s": 1e3, **settings}
        policy = policy_schema(action_horizon=horizon, num_observations=num_observations)
        self.state = ControlState(ControlSettings(**given), policy_info(policy), self.clock)
        self.epoch = self.connect().epoch

    def connect(self) -> control_pb2.OpenControl:
        opening = self.state.connecting().open
        self.epoch = opening.epoch
        self.state.received(control_pb2.ControlResponse(opened=control_pb2.ControlOpened(session_id="s")))
        return opening

    def tick(self) -> RobotAction:
        action = self.state.act(SEEN)
        self.clock.advance_ns(PERIOD_NS)
        return action

    def sent(self) -> list[Any]:
        """All that waits to be sent, each as the message it is."""
        messages = []
        while (message := self.state.outbox.pop()) is not None:
            messages.append(getattr(message, message.WhichOneof("message")))
        return messages

    def observation(self) -> control_pb2.Observation:
        (observation,) = self.sent()
        return observation

    def answer(self, seq: int, actions: np.ndarray | None = None, **more: Any) -> None:
        tensor = tensor_from_array(rows(0) if actions is None else actions)
        fields = {"answers_seq": seq, "epoch": self.epoch, "actions": tensor, **more}
        self.state.received(control_pb2.ControlResponse(chunk=control_pb2.ActionChunk(**fields)))

    def event(self, kind: str, seq: int | None = None, epoch: int | None = None, detail: str = "") -> None:
        error = request_pb2.ErrorDetail(code="INTERNAL", message=detail) if detail else None
        number = control_pb2.ControlEvent.Kind.Value(f"KIND_{kind.upper()}")
        event = control_pb2.ControlEvent(
            kind=number, seq=seq, epoch=self.epoch if epoch is None else epoch, detail=error
        )
        self.state.received(control_pb2.ControlResponse(event=event))

    def started(self, num_ticks: int = 0) -> Bench:
        """Observation 1 is answered, and so many of its actions are executed; nothing waits to be sent."""
        self.tick()
        self.sent()
        self.answer(1)
        for _ in range(num_ticks):
            self.tick()
        self.sent()
        return self


# ---- what the server does not take


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


def test_its_delay_is_what_the_last_chunks_took() -> None:
    bench = Bench(chunking="guided")
    bench.tick()
    assert not bench.observation().HasField("delay")
    bench.answer(1)
    bench.tick()
    assert bench.observation().delay == 1, "the robot held, but would have consumed one"
    for _ in range(2):
        bench.tick()
    bench.answer(2)
    bench.tick()
    third = bench.observation()
    assert (third.seq, third.delay) == (3, 3)
    for _ in range(2):
        bench.tick()
    bench.event("failed", 3)
    bench.tick()
    fourth = bench.observation()
    assert (fourth.delay, bench.state.queue.num_remaining) == (2, 1), "it had but two actions left to consume"


@pytest.mark.parametrize("settings", [{}, {"chunking": "temporal_ensemble"}, {"chunking": "guided", "delay": 2}])
def test_the_delay_is_not_said_where_nobody_asks(settings: dict[str, Any]) -> None:
    bench = Bench(**settings).started(2)
    bench.answer(2)
    bench.tick()
    assert not bench.observation().HasField("delay")


def test_recovering_is_left_out_of_the_delay() -> None:
    bench = Bench(chunking="prefix").started(1)
    bench.event("recovering", 2)
    for _ in range(4):
        bench.tick()
    bench.answer(2)
    bench.tick()
    assert bench.observation().delay == 1, "as the first chunk had it"


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"chunking": "guided"}, 7),
        ({"chunking": "prefix"}, 4),
        ({"chunking": "guided", "prefix_attention_horizon": 5}, 5),
    ],
)
def test_a_delay_that_the_policy_cannot_bridge_is_bridged_as_far_as_it_can(
    settings: dict[str, Any], longest: int
) -> None:
    """A seam is better than a robot that stands still, because its observations are refused."""
    bench = Bench(**settings).started(7)
    bench.answer(2, rows(0), delay_assumed=0)
    bench.tick()
    bench.sent()
    bench.answer(3, rows(8), delay_assumed=1)
    bench.tick()
    assert bench.state._delay.delay == 7
    assert bench.observation().delay == longest
    assert bench.state.record.snapshot().num_outrun == 1


def test_the_delay_reckons_with_the_chunk_that_comes_before() -> None:
    """The robot will have it by then, so it can consume more than what is left now."""
    bench = Bench(chunking="guided", replan_every=3).started(3)  # the second observation is on its way
    for _ in range(2):
        bench.tick()
    bench.answer(2, rows(3))
    delays = []
    for _ in range(4):
        bench.tick()
        delays += [(each.seq, each.delay, bench.state.queue.num_remaining + 1) for each in bench.sent()]
    assert bench.state.record.delays == deque([0, 3])
    assert delays == [(3, 3, 5), (4, 3, 2)]


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


# ---- the connection


def test_hold_then_stop_when_the_model_fails_for_good() -> None:
    bench = Bench(max_action_age_s=0.6, hold=np.zeros(2, np.float32)).started()
    kinds = []
    for seq in range(2, 20):
        action = bench.tick()
        kinds.append(action.kind)
        bench.event("failed", seq, detail="out of order")
    assert kinds == ["chunk"] * 8 + ["hold"] * 4 + ["stop"] * 6
    assert action.action.tolist() == [0, 0]  # type: ignore[union-attr]
    assert "is 0.900 s old: out of order" in action.reason
    assert isinstance(bench.state.problem, Internal)
    assert bench.state.record.snapshot().stop_ticks == 6


def test_old_replies_never_count_after_a_reconnection() -> None:
    bench = Bench(chunking="guided", epoch=5).started(2)
    assert bench.state.lost(Unavailable("gone")) == 0.1
    assert bench.tick().action.tolist() == [2, 2]  # type: ignore[union-attr]
    assert bench.sent() == [], "nothing is made while there is no connection"
    assert bench.connect().epoch == 6
    assert bench.tick().action.tolist() == [3, 3]  # type: ignore[union-attr]
    again = bench.observation()
    assert (again.epoch, again.seq, again.executed_index) == (6, 3, -1)
    assert numbers(again.previous_actions) == rows(3, 5).tolist()
    bench.answer(2, rows(100), epoch=5)
    bench.answer(2, rows(100))
    assert bench.tick().action.tolist() == [4, 4]  # type: ignore[union-attr]
    bench.answer(3, rows(30))
    action = bench.tick()
    assert (action.action.tolist(), action.index) == ([32, 32], 2)  # type: ignore[union-attr]
    assert bench.state.record.chunks == {"used": 2, "epoch": 1, "older": 1}


def test_ticks_of_a_new_connection_begin_with_its_first_observation_that_is_answered() -> None:
    """The server takes the first observation's tick for 0, whatever the robot has executed before."""
    bench = Bench(replan_every=1).started(1)
    bench.state.lost(Unavailable("gone"))
    bench.connect()
    for _ in range(2):
        bench.tick()
    assert len(bench.sent()) == 1, "the server counts from the one that is on its way"
    bench.event("failed", bench.state._last_seq)
    bench.tick()
    again = bench.observation()
    bench.answer(again.seq, rows(50))
    assert bench.tick().index == 1
    assert bench.observation().executed_index == 0


def test_without_chunking_of_the_model_nothing_is_said_of_the_last_connection() -> None:
    bench = Bench(chunking="temporal_ensemble").started(1)
    bench.state.lost(Unavailable("gone"))
    bench.connect()
    bench.tick()
    assert not bench.observation().HasField("previous_actions")


def test_what_was_asked_for_while_there_was_no_connection_is_in_the_opening() -> None:
    bench = Bench(seed=1).started(1)
    bench.state.lost(Unavailable("gone"))
    bench.state.set_instruction("pull")
    opening = bench.connect()
    assert (opening.epoch, opening.instruction, opening.seed) == (1, "pull", 1)
    bench.state.lost(Unavailable("gone"))
    bench.state.reset("touch", seed=9)
    opening = bench.connect()
    assert (opening.epoch, opening.instruction, opening.seed) == (3, "touch", 9)
    assert bench.tick().kind == "hold", "nothing of the last episode"
    assert len(bench.sent()) == 1


def test_what_is_asked_for_while_it_connects_is_sent_afterwards() -> None:
    bench = Bench().started(1)
    bench.state.lost(Unavailable("gone"))
    bench.state.connecting()
    bench.state.set_instruction("pull")
    bench.state.received(control_pb2.ControlResponse(opened=control_pb2.ControlOpened(session_id="s")))
    assert bench.sent()[0].instruction == "pull"


def test_some_errors_are_for_good() -> None:
    bench = Bench()
    assert bench.state.lost(ResourceExhausted("full")) is not None
    assert bench.state.lost(FailedPrecondition("another policy now")) is None
    assert isinstance(bench.state.fault, FailedPrecondition)


def test_a_session_that_never_opened_does_not_try_again() -> None:
    clock = ManualClock()
    settings = ControlSettings(model="toy", control_hz=20.0, instruction="push")
    state = ControlState(settings, policy_info(policy_schema()), clock)
    state.connecting()
    assert state.pulse() is None
    clock.advance_ns(int(30.1e9))
    error = state.pulse()
    assert "has not opened the session within 30 s" in str(error)
    assert state.lost(error) is None  # type: ignore[arg-type]


def test_heartbeats_go_out_and_silence_is_noticed() -> None:
    bench = Bench(heartbeat_timeout_s=2.0)
    quarter_ns = int(bench.state.interval_s * 1e9)
    for number in (1, 2, 3):
        assert bench.state.pulse() is None
        bench.clock.advance_ns(quarter_ns)
        assert bench.state.pulse() is None
        assert bench.sent()[-1].number == number
    bench.event("late")
    for _ in range(4):
        bench.clock.advance_ns(quarter_ns)
        assert bench.state.pulse() is None, "an event was a sign of life"
    bench.clock.advance_ns(quarter_ns)
    assert bench.state.pulse() is None
    bench.clock.advance_ns(1)
    assert str(bench.state.pulse()) == "the server has not answered for 2 s"


def test_heartbeats_are_only_sent_when_due() -> None:
    heartbeats = Heartbeats(2.0, now_ns=0)
    assert [heartbeats.due(ns) for ns in (0, 499_999_999, 500_000_000, 500_000_001, 10**9)] == [None, None, 1, None, 2]


def test_attempts_are_further_and_further_apart() -> None:
    backoff = Backoff()
    assert [backoff.next_s() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    backoff.succeeded()
    assert backoff.next_s() == 0.1


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


@pytest.mark.parametrize("latency_s", [0.0, 0.1, 0.35, 0.7])
def test_a_slow_model_does_not_starve_a_robot_whose_chunks_are_long(latency_s: float) -> None:
    """50 actions a chunk at 30 Hz; one observation at a time is on its way, and is answered `latency_s` later."""
    bench = Bench(50, control_hz=30.0, chunking="guided")
    on_its_way: tuple[int, float, int] | None = None
    delays = []
    for tick in range(300):
        now_s = tick / 30
        if on_its_way is not None and now_s >= on_its_way[1]:
            bench.answer(on_its_way[0], rows(on_its_way[2], 50))
            on_its_way = None
        action = bench.state.act(SEEN)
        bench.clock.advance_ns(10**9 // 30)
        for observation in bench.sent():
            assert on_its_way is None
            executed = bench.state.queue.num_consumed - (action.kind == "chunk")
            on_its_way = observation.seq, now_s + latency_s, executed
            delays.append(observation.delay)
        if action.kind == "chunk":
            assert action.action.tolist()[0] == bench.state.queue.num_consumed - 1  # type: ignore[union-attr]
    stats = bench.state.record.snapshot()
    assert stats.starvation_ticks == 0
    assert stats.waiting_ticks <= 30 * latency_s + 1.5
    assert set(stats.seam_jumps) <= {0.0}
    assert min(stats.delays[1:]) <= delays[-1] <= max(stats.delays[1:]) <= 30 * latency_s + 1.5


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


def test_the_first_delay_counts_the_time_that_the_robot_stood_still() -> None:
    bench = Bench(chunking="guided")
    bench.state.send(SEEN)
    bench.sent()
    bench.clock.advance_ns(int(2.5 * PERIOD_NS))
    bench.answer(1)
    bench.tick()
    assert bench.observation().delay == 3


def test_new_flags_of_a_chunk_are_an_event() -> None:
    bench = Bench()
    for seq, flags in enumerate(([], ["unknown_words"], ["unknown_words"], []), start=1):
        bench.state.send(SEEN)
        bench.answer(seq, flags=flags)
    assert [(event.seq, event.detail) for event in bench.state.events if event.kind == "flagged"] == [
        (2, "unknown_words")
    ]


@pytest.mark.parametrize("instruction", ["", "  "])
def test_an_instruction_without_a_word_is_refused(instruction: str) -> None:
    with pytest.raises(FailedPrecondition, match="takes an instruction: give one"):
        Bench(instruction=instruction)
    with pytest.raises(InvalidArgument, match="the instruction is empty"):
        Bench().state.set_instruction(instruction)
