"""A server that is watched, with its real worker: where ticks spend their time, metrics of all processes, traces of misses."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from composite_serving import ENVIRONMENT
from control_stream import Kind, opened
from serving import Serving, serving_of, write_deployment

from mstar_rt.protos import request_pb2

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

HOLD_S = 0.3
SLOW = {"model_options": {"hold_s": {"number": HOLD_S}}}
MAX_POLLS = 5000


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched") / "traces"


@pytest.fixture(scope="module")
def served(traces: Path) -> Iterator[Serving]:
    data = {
        "name": "watched-test",
        "server": {"port": 0, "metrics_port": 0, "trace_dir": str(traces)},
        "admission": {"utilisation_bound": None},
        "models": [{"name": "toy", "family": "toy_policy:declare"}],
        "workers": [{"rank": 0, "shared_memory_mb": 16}],
    }
    with serving_of(write_deployment(traces.parent, data), ENVIRONMENT, traces.parent / "log") as serving:
        yield serving


@pytest.fixture(scope="module")
def metrics_address(served: Serving) -> str:
    assert served.process.stdout is not None
    line = served.process.stdout.readline()
    assert line.startswith("mstar-rt shows its metrics on http://127.0.0.1:")
    return line.split()[-1]


@pytest.fixture
def channel(served: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address) as opened_channel:
        yield opened_channel


def accounted_us(timing: request_pb2.Timing) -> float:
    return timing.decode_us + timing.queue_us + timing.run_us + timing.transport_us + timing.encode_us


def test_the_parts_of_a_tick_add_up_to_what_it_took(channel: grpc.Channel) -> None:
    robot = opened(channel, **SLOW)
    robot.observe(1)
    timing = robot.hear("chunk").timing
    (node,) = timing.nodes
    assert timing.run_us == pytest.approx(node.run_us)
    assert timing.run_us >= 1e6 * HOLD_S
    assert min(timing.decode_us, timing.queue_us, timing.transport_us, timing.encode_us) > 0
    assert accounted_us(timing) <= timing.total_us + 1.0
    assert accounted_us(timing) >= timing.runtime_us
    robot.close()


def test_a_tick_that_waits_for_the_step_before_it_has_waited_in_the_queue(channel: grpc.Channel) -> None:
    """Also if it came to the worker's inbox while that step ran."""
    first, second = opened(channel, **SLOW), opened(channel, **SLOW)
    first.observe(1)
    second.observe(1)
    timings = [robot.hear("chunk").timing for robot in (first, second)]
    waited = max(timings, key=lambda timing: timing.queue_us + timing.run_us)
    assert waited.queue_us + waited.run_us >= 1.5e6 * HOLD_S
    assert waited.transport_us < waited.queue_us + waited.run_us
    for timing in timings:
        assert accounted_us(timing) <= timing.total_us + 1.0
    for robot in (first, second):
        robot.close()


def test_metrics_are_of_all_processes(channel: grpc.Channel, metrics_address: str) -> None:
    robot = opened(channel)
    robot.observe(1)
    robot.hear("chunk")
    with urllib.request.urlopen(metrics_address, timeout=20) as answer:
        text = answer.read().decode()
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    up = {sample.labels["process"]: sample.value for sample in samples["mstar_up"]}
    assert up == {"server": 1.0, "conductor": 1.0, "worker/0": 1.0}
    assert samples["mstar_server_tick_seconds_count"][0].value >= 1
    assert samples["mstar_server_control_sessions"][0].value == 1
    (run,) = [s for s in samples["mstar_worker_run_seconds_count"] if s.labels["node"] == "act"]
    assert (run.labels["rank"], run.labels["model"]) == ("0", "toy")
    assert run.value >= 1
    for name in (
        "queue_seconds_count",
        "batch_size_count",
        "utilisation",
        "misses_total",
        "drops_total",
        "ready_units",
    ):
        assert f"mstar_worker_{name}" in samples
    robot.close()


def test_a_tick_that_misses_leaves_a_trace_of_server_and_worker(
    served: Serving, channel: grpc.Channel, traces: Path
) -> None:
    robot = opened(channel, budget_ms=400.0, model_options={"hold_s": {"number": 0.8}})
    robot.observe(1)
    request_id = robot.hear("chunk").request_id
    robot.hear_event(Kind.KIND_LATE, 1)
    with served.connect() as client:
        (session,) = client.sessions()
        assert (session.num_answered, session.num_missed) == (1, 1)
        file = traces / f"missed-000001-{request_id}.json"
        for _ in range(MAX_POLLS):
            if file.exists():
                break
            client.server_info()
    events = json.loads(file.read_text())
    of_tick = {event["name"] for event in events if request_id in event.get("args", {}).get("requests", "")}
    assert {"tick", "decode", "encode", "act", "toy.act"} <= of_tick
    robot.close()
