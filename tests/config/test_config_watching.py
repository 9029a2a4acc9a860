"""Keys for whoever watches a server: what they may be, and where a folder of traces lies."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_rt.config import DeploymentConfig, parse_deployment
from mstar_rt.errors import ConfigError
from mstar_rt.launch import watch_config


def parsed(**server: Any) -> DeploymentConfig:
    data = {"name": "lab", "models": [{"name": "toy", "family": "toy"}], "server": server}
    return parse_deployment(data, base_dir="/srv/robots")


def test_nothing_is_watched_unless_asked_for() -> None:
    config = watch_config(parsed())
    assert (config.metrics_port, config.trace_dir, config.otlp_endpoint) == (None, "", "")


def test_a_folder_of_traces_is_relative_to_the_file() -> None:
    config = watch_config(parsed(trace_dir="traces", metrics_port=9100, otlp_endpoint="http://127.0.0.1:4318"))
    assert (config.trace_dir, config.metrics_port, config.deployment) == ("/srv/robots/traces", 9100, "lab")
    assert watch_config(parsed(trace_dir="/var/traces")).trace_dir == "/var/traces"


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ({"metrics_port": 70_000}, "metrics_port is 70000, expected 0 to 65535"),
        ({"metrics_port": True}, "metrics_port is True, expected int"),
        ({"port": 9100, "metrics_port": 9100}, "metrics_port is 9100, as is port: choose another one"),
        ({"http_port": -1}, "http_port is -1, expected 0 to 65535"),
        ({"http_port": "8080"}, "http_port is '8080', expected int"),
        ({"port": 9100, "http_port": 9100}, "http_port is 9100, as is port: choose another one"),
        ({"metrics_port": 9100, "http_port": 9100}, "http_port is 9100, as is metrics_port: choose another one"),
        ({"otlp_endpoint": "localhost:4318"}, "expected e.g. 'http://127.0.0.1:4318'"),
    ],
)
def test_wrong_values_are_refused(server: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(**server)
