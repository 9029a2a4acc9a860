"""The parts of an answer's time: none of it is counted twice."""

from __future__ import annotations

import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.message import Finished
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.request_stream import RequestStream

MS = 1_000_000


@pytest.mark.parametrize("preempted_ms", [0, 3, 40], ids=["at once", "a while", "longer than all the rest"])
def test_a_server_that_is_not_run_after_it_has_sent_a_request_has_not_decoded_meanwhile(preempted_ms: int) -> None:
    clock = ManualClock(7 * MS)
    timer = CallTimer(clock)
    with timer.decoding():
        clock.advance_ns(2 * MS)
    clock.advance_ns(1 * MS)  # the slot of the newest observation
    stream = RequestStream("r", "toy", {}, {}, lambda _: None)
    with timer.decoding():
        clock.advance_ns(1 * MS)
        stream.submitted_ns = clock.now_ns()
        clock.advance_ns(preempted_ms * MS)
    clock.advance_ns(max(0, 10 - preempted_ms) * MS)
    stream.ended_ns = stream.submitted_ns + 10 * MS
    stream.finished = Finished("r", 0, {}, {}, {}, 9e3, wait_us=2e3, run_us=6e3)
    with timer.encoding():
        clock.advance_ns(1 * MS)
    timing = timer.timing(stream)
    assert timing.decode_us == pytest.approx(3e3)
    assert timing.transport_us == pytest.approx(2e3)
    parts_us = timing.decode_us + timing.queue_us + timing.run_us + timing.transport_us + timing.encode_us
    assert parts_us == pytest.approx(14e3)
    assert parts_us <= timing.total_us
