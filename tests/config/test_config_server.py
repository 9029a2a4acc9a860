"""Keys for who may use a server: what they may be, where their files lie, and what the command line may add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mstar_rt import launch
from mstar_rt.cli import main
from mstar_rt.config import DeploymentConfig, connection_environment, parse_deployment
from mstar_rt.errors import ConfigError
from mstar_rt.launch import edge_config, watch_config
from mstar_rt.server.tls import TlsFiles

FILES = {"tls_cert_file": "tls/server.pem", "tls_key_file": "/etc/server.key", "tls_client_ca_file": "tls/ca.pem"}


def parsed(admission: dict[str, Any] | None = None, **server: Any) -> DeploymentConfig:
    data = {"name": "lab", "models": [{"name": "toy", "family": "toy"}], "server": server}
    return parse_deployment(data | ({} if admission is None else {"admission": admission}), base_dir="/srv/robots")


def test_nobody_is_asked_for_anything_on_loopback_unless_the_file_says_so() -> None:
    edge = edge_config(parsed())
    assert (edge.host, edge.tls, edge.tokens_file, edge.insecure) == ("127.0.0.1", None, "", False)
    assert edge.max_messages_per_s == 10_000


def test_files_are_relative_to_the_deployments_and_the_same_for_the_metrics() -> None:
    config = parsed(host="0.0.0.0", tokens_file="tokens", metrics_port=0, http_port=0, **FILES)
    edge, watching = edge_config(config), watch_config(config)
    assert edge.tls == TlsFiles("/srv/robots/tls/server.pem", "/etc/server.key", "/srv/robots/tls/ca.pem")
    assert (edge.tokens_file, edge.http_port) == ("/srv/robots/tokens", 0)
    assert (watching.host, watching.tls, watching.tokens_file) == ("0.0.0.0", edge.tls, edge.tokens_file)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tls_cert_file": "a"}, "tls_cert_file is given without tls_key_file, TLS needs both"),
        ({"tls_key_file": "a"}, "tls_key_file is given without tls_cert_file, TLS needs both"),
        ({"tls_client_ca_file": "a"}, "tls_client_ca_file is given without tls_cert_file"),
        ({"admission": {"max_messages_per_s_per_client": 0}}, "is 0, expected 0.1 to 1000000, or null for any"),
        ({"admission": {"max_messages_per_s_per_client": float("nan")}}, "is nan, expected 0.1 to 1000000"),
    ],
)
def test_wrong_values_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(**fields)


def test_any_rate() -> None:
    config = parsed(admission={"max_messages_per_s_per_client": None})
    assert edge_config(config).max_messages_per_s is None


def test_insecure_may_be_said_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("name: lab\nmodels: [{name: toy, family: toy}]\nserver: {host: 0.0.0.0}\n")
    started: list[DeploymentConfig] = []

    async def serve(config: DeploymentConfig) -> None:
        started.append(config)

    monkeypatch.setattr(launch, "serve", serve)
    assert main(["serve", str(file)]) == 0
    assert main(["serve", str(file), "--insecure"]) == 0
    assert [edge_config(config).insecure for config in started] == [False, True]
    assert {edge_config(config).host for config in started} == {"0.0.0.0"}


def test_a_command_reaches_a_server_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TLS_CA_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE"):
        monkeypatch.delenv(f"MSTAR_{name}", raising=False)
    assert connection_environment() == {}
    monkeypatch.setenv("MSTAR_TOKEN", "a-token")
    monkeypatch.setenv("MSTAR_TLS_CA_FILE", "")
    monkeypatch.setenv("MSTAR_TLS_KEY_FILE", "key.pem")
    assert connection_environment() == {"token": "a-token", "tls_key_file": "key.pem"}
