"""Sessions, their figures and traces as a client gets them; what an answer says of its time."""

from __future__ import annotations

import numpy as np
import pytest
from toy_runtime import SIZE, Job, ToyRuntime

from mstar_rt.client import Client, Timing, connect_async
from mstar_rt.errors import DeadlineExceeded, InvalidArgument, MstarError

FRAMES = np.full((1, SIZE, SIZE, 3), 9, np.uint8)
STATE = np.zeros(7, np.float32)


async def too_late(job: Job) -> None:
    job.fail("DEADLINE_EXCEEDED", "the deadline passed")


def test_sessions_of_planners_and_tasks_are_shown_while_they_are_open(client: Client, runtime: ToyRuntime) -> None:
    with client.session("toy") as planner, client.task_session("toy") as tasks:
        planner.set_goal(FRAMES)
        tasks.run("encode", {"frames": FRAMES})
        runtime.script("encode", too_late)
        with pytest.raises(DeadlineExceeded):
            tasks.run("encode", {"frames": FRAMES})
        first, second = client.sessions()
        assert (first.kind, first.model, first.num_answered, first.num_missed) == ("world_model", "toy", 1, 0)
        assert (second.kind, second.num_answered, second.num_missed) == ("tasks", 1, 1)
        for session in (first, second):
            assert session.p50_ms is not None
            assert session.p50_ms > 0
            assert session.asked_hz == session.budget_ms == 0.0
    runtime.wait_until_nothing_is_held()
    assert client.sessions() == []


async def test_the_asyncio_client_has_the_same(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client:
        assert await client.sessions() == []
        trace = await client.trace(5.0)
        assert [span.requests for span in trace.processes["worker/0"]] == [("r1",)]


@pytest.mark.parametrize("last_s", [0.0, -1.0, float("nan"), True])
def test_a_trace_of_no_time_is_refused(client: Client, last_s: float) -> None:
    with pytest.raises(InvalidArgument, match="last_s"):
        client.trace(last_s)


def test_requests_are_counted_by_how_they_end(client: Client, runtime: ToyRuntime) -> None:
    client.encode("toy", FRAMES)
    runtime.script("encode", too_late)
    with pytest.raises(MstarError):
        client.encode("toy", FRAMES)
    stats = client.stats()
    server = stats.processes["server"]
    ended = {name: value for name, value in server.items() if name.startswith("requests_ended/")}
    assert ended == {"requests_ended/planning/OK": 1.0, "requests_ended/planning/DEADLINE_EXCEEDED": 1.0}
    assert stats.histograms["server"]["request_us/toy/encode"].num_values == 1


def test_an_answer_tells_the_networks_share_from_its_own(client: Client) -> None:
    timing = client.encode("toy", FRAMES).timing
    assert timing.transport_us > 0
    assert 0 <= timing.unaccounted_us < timing.total_us
    assert timing.network_us(elapsed_s=1.0) == pytest.approx(1e6 - timing.total_us)


def test_what_is_not_accounted_for_is_the_rest() -> None:
    timing = Timing(1.0, 2.0, {}, {}, 90.0, 5.0, 20.0, transport_us=4.0, run_us=3.0)
    assert timing.unaccounted_us == 5.0
