"""Deployment files: what is wrong is named, with the place and the nearest right name."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from mstar_rt.config import PlacementRule, config_from_plain, config_to_plain, load_deployment, parse_deployment
from mstar_rt.errors import ConfigError

GOOD: dict[str, Any] = {
    "name": "test",
    "server": {"port": 0},
    "workers": [{"rank": 0, "threads": 1, "dtype": "bfloat16"}],
    "models": [{"name": "m", "family": "f", "options": {"image_size": 64}}],
    "placement": [{"model": "m", "nodes": ["*"], "ranks": [0]}],
    "warmup_timeout_s": 10,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), **changes}


def test_defaults_and_values() -> None:
    config = parse_deployment(GOOD)
    assert config.server.host == "127.0.0.1"
    assert config.server.port == 0
    assert config.workers[0].dtype == "bfloat16"
    assert config.models[0].options == {"image_size": 64}
    assert config.warmup_timeout_s == 10.0


def test_limits_that_watch_over_processes() -> None:
    config = parse_deployment(
        changed(
            server={"drain_timeout_s": 0, "max_unread_mb": 8},
            workers=[{"rank": 0, "check_outputs": True, "max_step_s": 1.5, "max_step_ms": 20, "silence_timeout_s": 2}],
        )
    )
    assert (config.server.drain_timeout_s, config.server.max_unread_mb) == (0.0, 8)
    worker = config.workers[0]
    assert (worker.check_outputs, worker.max_step_s, worker.max_step_ms, worker.silence_timeout_s) == (True, 1.5, 20, 2)


def test_a_placement_rule_is_about_all_nodes_in_all_walks_unless_it_says_so() -> None:
    config = parse_deployment(
        changed(placement=[{"model": "m"}, {"model": "m", "nodes": ["a"], "ranks": [1, 0], "walks": ["w"]}])
    )
    assert config.placement == (PlacementRule("m", ("*",), (0,), ("*",)), PlacementRule("m", ("a",), (1, 0), ("w",)))


def test_plain_round_trip() -> None:
    config = parse_deployment(GOOD, base_dir="/somewhere")
    import json

    assert config_from_plain(json.loads(json.dumps(config_to_plain(config)))) == config


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (changed(serverr={}), "config: unknown key 'serverr', did you mean 'server'?"),
        (changed(server={"prot": 1}), "config.server: unknown key 'prot', did you mean 'port'?"),
        (changed(base_dir="x"), "unknown key 'base_dir'"),
        (changed(workers=[{}]), r"config.workers\[0\]: key 'rank' is missing"),
        (changed(workers=[{"rank": "0"}]), r"config.workers\[0\].rank is '0', expected int"),
        (changed(workers=[{"rank": True}]), r"config.workers\[0\].rank is True, expected int"),
        (changed(workers=[{"rank": 0}, {"rank": 0}]), "config.workers: rank 0 is given twice"),
        (changed(workers=[{"rank": 0, "dtype": "fp8"}]), "dtype is 'fp8', expected 'float32' or 'bfloat16'"),
        (changed(workers=[{"rank": 0, "threads": 0}]), "threads is 0, expected 1 to 256"),
        (changed(workers={"rank": 0}), "config.workers is {'rank': 0}, expected a list"),
        (changed(models=[]), "'models' is empty"),
        (changed(models=[{"name": "a", "family": "f"}] * 2), "name 'a' is given twice"),
        (changed(server={"port": 70000}), "port is 70000, expected 0 to 65535"),
        (changed(server={"max_message_mb": 0}), "max_message_mb is 0, expected 1 to 1024"),
        (["x"], r"is \['x'\], expected a mapping with keys name, models, workers, .*, warmup_timeout_s$"),
        (
            changed(server={"process": None}),
            "config.server.process is empty, expected a mapping with keys cpus, realtime_priority$",
        ),
        (changed(workers=[]), "'workers' is empty"),
        (changed(workers=[{"rank": -1}]), "rank is -1, expected at least 0"),
        (changed(workers=[{"rank": 0, "device": "cpuu"}]), "device is 'cpuu', expected 'cpu', 'cuda' or 'cuda:<n>'"),
        (changed(workers=[{"rank": 0, "threads": 100000}]), "threads is 100000, expected 1 to 256"),
        (changed(name=""), "name '' is not usable"),
        (changed(models=[{"name": "a\nb", "family": "f"}]), "is not usable"),
        (changed(placement=[{"model": "m", "nodes": []}]), r"placement\[0\].nodes is empty"),
        (changed(placement=[{"model": "m", "walks": []}]), r"placement\[0\].walks is empty, name walks or '\*'"),
        (
            changed(placement=[{"model": "m", "walk": ["w"]}]),
            r"placement\[0\]: unknown key 'walk', did you mean 'walks'",
        ),
        (changed(placement=[{"model": "m", "ranks": 0}]), r"placement\[0\].ranks is 0, expected a list"),
        (changed(placement=[{"model": "m", "ranks": ["0"]}]), r"placement\[0\].ranks\[0\] is '0', expected int"),
        (changed(workers=[{"rank": 0, "max_step_s": 0}]), "max_step_s is 0, expected over 0, up to 86400"),
        (changed(workers=[{"rank": 0, "max_step_s": float("inf")}]), "max_step_s is inf"),
        (changed(workers=[{"rank": 0, "max_step_ms": 0}]), r"workers\[0\].max_step_ms is 0, expected 0.1 to 60000"),
        (
            changed(workers=[{"rank": 0}, {"rank": 1, "max_step_ms": 0.01}]),
            r"workers\[1\].max_step_ms is 0.01, expected",
        ),
        (changed(workers=[{"rank": 0}, {"rank": 1, "threads": 0}]), r"workers\[1\].threads is 0, expected 1 to 256"),
        (changed(workers=[{"rank": 0, "max_step_ms": 9e3, "max_step_s": 2}]), "max_step_ms is 9000, expected 0.1 to 2"),
        (changed(workers=[{"rank": 0, "max_step_ms": float("nan")}]), "max_step_ms is nan"),
        (
            changed(workers=[{"rank": 0, "scheduling": "lifo"}]),
            "scheduling is 'lifo', expected one of deadline, fcfs, round_robin",
        ),
        (changed(workers=[{"rank": 0, "lower_class_share": 1}]), "lower_class_share is 1, expected 0 up to below 1"),
        (changed(workers=[{"rank": 0, "lower_class_share": float("nan")}]), "lower_class_share is nan"),
        (changed(workers=[{"rank": 0, "max_step_ms": "20"}]), r"workers\[0\].max_step_ms is '20', expected float"),
        (changed(workers=[{"rank": 0, "silence_timeout_s": 0.5}]), "silence_timeout_s is 0.5, expected at least 1, up"),
        (changed(workers=[{"rank": 0, "check_outputs": 1}]), "check_outputs is 1, expected bool"),
        (changed(server={"drain_timeout_s": -1}), "drain_timeout_s is -1, expected at least 0, up to 86400"),
        (changed(server={"max_unread_mb": 0}), "max_unread_mb is 0, expected 1 to 65536"),
        (changed(warmup_timeout_s=float("nan")), "warmup_timeout_s is nan"),
        (changed(warmup_timeout_s=-1), "warmup_timeout_s is -1"),
    ],
)
def test_bad_files_are_refused(data: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_deployment(data)


def test_missing_and_broken_files(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load_deployment(tmp_path / "none.yaml")
    twice = tmp_path / "twice.yaml"
    twice.write_text("name: a\nserver: {port: 1, port: 2}\n")
    with pytest.raises(ConfigError, match="key 'port' is given twice"):
        load_deployment(twice)
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_deployment(broken)


def test_paths_are_relative_to_the_file(tmp_path: Any) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("name: x\nmodels: [{name: m, family: f, checkpoint: w.pt}]\n")
    config = load_deployment(file)
    assert config.resolve(config.models[0].checkpoint) == str(tmp_path / "w.pt")
    assert config.resolve("/abs/w.pt") == "/abs/w.pt"
    assert config.resolve("") == ""
    assert config.resolve_options({"config": "d.json", "size": 3}) == {"config": str(tmp_path / "d.json"), "size": 3}
    assert config.resolve_options({"config": 3}) == {"config": 3}


def test_what_is_taken_on() -> None:
    assert parse_deployment(GOOD).admission.utilisation_bound == 0.8
    given = {"utilisation_bound": None, "max_queued_planning": 3, "max_sessions_per_client": 2}
    admission = parse_deployment(changed(admission=given)).admission
    assert admission.utilisation_bound is None
    assert (admission.max_queued_planning, admission.max_sessions_per_client) == (3, 2)
    assert (admission.max_queued_generation, admission.max_requests_per_client) == (256, 128)


@pytest.mark.parametrize(
    ("admission", "message"),
    [
        ({"utilisation_bound": 0}, "test.admission.utilisation_bound is 0, expected over 0, at most 1, or null"),
        ({"utilisation_bound": 1.01}, "utilisation_bound is 1.01"),
        ({"utilisation_bound": float("nan")}, "utilisation_bound is nan"),
        ({"max_queued_generation": 0}, "max_queued_generation is 0, expected 1 to 1000000"),
        ({"max_requests_per_client": 1.5}, "max_requests_per_client is 1.5, expected int"),
        ({"max_queued": 5}, "unknown key 'max_queued', did you mean"),
    ],
)
def test_impossible_admission_is_refused(admission: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_deployment(changed(admission=admission), where="test")
