"""Prometheus' text: every value of every process is there, in seconds, with its labels; a silent process is seen as such."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mstar_rt.message import Distribution
from mstar_rt.server.metrics_text import pieces_of
from mstar_rt.server.stats import Collected

WAITED = Distribution([100.0, 1e3, 1e6], [1, 2, 0, 1], 5e6)


def samples(stats: Collected) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = b"".join(pieces_of(stats)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_values_have_units_labels_and_kinds() -> None:
    values = {
        "server": {"requests_running": 3.0, "control_late": 2.0, "requests_ended/control/OK": 9.0},
        "conductor": {"requests_running": 4.0, "requests_finished_total": 7.0},
        "worker/1": {
            "busy_us/control": 2.5e6,
            "pages_free/toy/memory": 5.0,
            "ready_units": 2.0,
            "ready_units/control": 1.0,
        },
    }
    found = samples(Collected(values, {}, []))
    rank = ("rank", "1")
    expected: dict[Any, float] = {
        ("mstar_up", (("process", "server"),)): 1.0,
        ("mstar_server_requests_running", ()): 3.0,
        ("mstar_conductor_requests_running", ()): 4.0,
        ("mstar_conductor_requests_finished_total", ()): 7.0,
        ("mstar_server_control_late_total", ()): 2.0,
        ("mstar_server_requests_ended_total", (("class", "control"), ("code", "OK"))): 9.0,
        ("mstar_worker_busy_seconds_total", (("class", "control"), rank)): 2.5,
        ("mstar_worker_pages_free", (("cache", "memory"), ("model", "toy"), rank)): 5.0,
        ("mstar_worker_ready_units", (("class", "control"), rank)): 1.0,
        ("mstar_worker_ready_units_all", (rank,)): 2.0,
    }
    assert {key: found[key] for key in expected} == expected


def test_histograms_are_cumulative_and_in_seconds() -> None:
    names = ("run_us/toy/a", "run_us/toy/b")
    found = samples(Collected({"worker/0": {}}, {"worker/0": dict.fromkeys(names, WAITED)}, []))
    for node in ("a", "b"):
        labels = (("model", "toy"), ("node", node), ("rank", "0"))
        buckets = {
            dict(key[1])["le"]: value
            for key, value in found.items()
            if key[0] == "mstar_worker_run_seconds_bucket" and ("node", node) in key[1]
        }
        assert buckets == {"0.0001": 1.0, "0.001": 3.0, "1.0": 3.0, "+Inf": 4.0}
        assert found["mstar_worker_run_seconds_sum", labels] == pytest.approx(5.0)
        assert found["mstar_worker_run_seconds_count", labels] == 4.0


def test_a_family_is_described_once_however_many_pieces_it_comes_in() -> None:
    histograms = {"worker/0": {f"run_us/toy/{node}": WAITED for node in "abc"}}
    pieces = list(pieces_of(Collected({"worker/0": {}}, histograms, [])))
    assert sum(b"mstar_worker_run_seconds_count" in piece for piece in pieces) == 3
    assert b"".join(pieces).count(b"# TYPE mstar_worker_run_seconds histogram") == 1


def test_a_silent_process_is_down_and_an_unknown_name_is_shown() -> None:
    found = samples(Collected({"worker/0": {"frobs/x/y": 1.0}}, {}, ["worker/1"]))
    assert found["mstar_up", (("process", "worker/1"),)] == 0.0
    assert found["mstar_worker_frobs", (("l1", "x"), ("l2", "y"), ("rank", "0"))] == 1.0
