"""What a file may ask of the kernel for a process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mstar_rt.config import config_from_plain, config_to_plain, parse_deployment
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import ConfigError


def deployment(worker: dict[str, Any], server: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "test",
        "models": [{"name": "m", "family": "f"}],
        "workers": [{"rank": 0, "process": worker}],
        "server": {"process": server},
    }


def test_nothing_is_asked_by_default() -> None:
    config = parse_deployment(deployment({}, {}))
    assert config.workers[0].process == config.server.process == ProcessConfig((), 0)


def test_what_is_asked_arrives_in_another_process() -> None:
    asked = deployment({"cpus": [1, 2]}, {"realtime_priority": 20})
    config = config_from_plain(json.loads(json.dumps(config_to_plain(parse_deployment(asked)))))
    assert config.workers[0].process == ProcessConfig(cpus=(1, 2))
    assert config.server.process == ProcessConfig(realtime_priority=20)


@pytest.mark.parametrize(
    ("process", "sentence"),
    [
        ({"cpus": [-1]}, r"cpus has -1, expected numbers of cores, 0 to 4095"),
        ({"cpus": [2, 2]}, r"cpus has 2 twice"),
        ({"cpus": "0-3"}, r"cpus is '0-3', expected a list"),
        ({"realtime_priority": 100}, r"realtime_priority is 100, expected 1 to 99, or 0 for an ordinary process"),
        ({"realtime_prio": 1}, r"unknown key 'realtime_prio', did you mean 'realtime_priority'"),
    ],
)
def test_what_no_machine_could_do_is_refused(process: dict[str, Any], sentence: str) -> None:
    for worker, server, where in ((process, {}, r"config.workers.*process"), ({}, process, r"config.server.process")):
        with pytest.raises(ConfigError, match=f"{where}.*{sentence}"):
            parse_deployment(deployment(worker, server))
