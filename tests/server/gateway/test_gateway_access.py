"""Who gets in, what is there, and how the gateway starts and ends."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import (
    APIConnectionError,
    AuthenticationError,
    DefaultHttpxClient,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from certificates import Authority, new_authority
from openai_client import client_of, replaced, served, url_of
from toy_generators import NAME, VOICES, endless, talker, write
from toy_runtime import ToyRuntime, toy_model, toy_runtime

from mstar_rt.client import connect
from mstar_rt.errors import ConfigError, FailedPrecondition
from mstar_rt.message import Submit
from mstar_rt.server.edge import EdgeConfig
from mstar_rt.server.gateway import check
from mstar_rt.server.gateway.body import MAX_BODY_BYTES

ALICE, WRONG = "alice-has-this-token", "nobody-has-this-token"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[ToyRuntime]:
    tokens = tmp_path_factory.mktemp("keys") / "tokens"
    tokens.write_text(f"alice {ALICE}\n")
    tokens.chmod(0o600)
    with served(tokens_file=str(tokens), tls=authority.server()) as running:
        yield running


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with served(max_messages_per_s=1000.0) as running:
        yield running


def got(
    url: str,
    context: ssl.SSLContext | None = None,
    data: bytes | None = None,
    method: str = "",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, headers, method=method or None)
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


# ---- keys and certificates


def test_the_token_is_the_api_key(guarded: ToyRuntime, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    with client_of(guarded, ALICE, http_client=DefaultHttpxClient(verify=context)) as client:
        assert client.chat.completions.create(model=NAME, messages=HELLO).choices[0].finish_reason == "stop"
    assert guarded.seen(Submit)[-1].client == "alice"
    with (
        client_of(guarded, WRONG, http_client=DefaultHttpxClient(verify=context)) as client,
        pytest.raises(AuthenticationError, match="not one of this server's") as error,
    ):
        client.models.list()
    assert (error.value.code, error.value.type) == ("invalid_api_key", "authentication_error")
    assert WRONG not in error.value.message
    assert error.value.response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/models", "/chat/completions", "/audio/speech", "/none"])
def test_nothing_is_served_without_one(guarded: ToyRuntime, authority: Authority, path: str) -> None:
    context, num_before = ssl.create_default_context(cafile=authority.cert), len(guarded.seen(Submit))
    status, answer = got(f"{url_of(guarded)}{path}", context, b"{}" if "/" in path[1:] else None)
    assert (status, answer["error"]["message"][:46]) == (401, "this server lets nobody in without a token: gi")
    assert len(guarded.seen(Submit)) == num_before


def test_probes_need_none(guarded: ToyRuntime, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    assert got(url_of(guarded).replace("/v1", "/healthz"), context) == (200, {"status": "serving"})


def test_a_certificate_names_its_client(authority: Authority) -> None:
    context, pair = ssl.create_default_context(cafile=authority.cert), authority.pair("bench-3")
    context.load_cert_chain(pair.cert, pair.key)
    with served(tls=authority.server(client_ca=True)) as runtime:
        with client_of(runtime, http_client=DefaultHttpxClient(verify=context)) as client:
            client.chat.completions.create(model=NAME, messages=HELLO)
        assert runtime.seen(Submit)[-1].client == "bench-3"


def test_a_page_in_a_browser_is_no_program_of_this_machine(runtime: ToyRuntime) -> None:
    """It may send texts anywhere, and a name of its own may be made to mean this machine."""
    url, body = f"{url_of(runtime)}/chat/completions", json.dumps({"model": NAME, "messages": HELLO}).encode()
    status, answer = got(url, data=body, headers={"Content-Type": "text/plain"})
    assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")
    for host in ("evil.example", "evil.example:8080", "[2001:db8::1]:80", ""):
        status, answer = got(url, data=body, headers={"Host": host})
        assert (status, answer["error"]["code"]) == (403, "forbidden_host")
    for host in ("localhost", "localhost:8080", "127.0.0.1", "[::1]:80"):
        assert got(url, data=body, headers={"Host": host})[0] == 200
    with served(insecure=True) as open_to_all:
        assert got(f"{url_of(open_to_all)}/models", headers={"Host": "proxy.example"})[0] == 200


# ---- what is there


def test_models(runtime: ToyRuntime) -> None:
    with client_of(runtime) as client:
        (model,) = client.models.list().data
        assert (model.id, model.object, model.owned_by) == (NAME, "model", "mstar-rt")
        assert model.model_extra == {"tasks": ["chat", "speech"], "voices": list(VOICES), "sample_rate_hz": 8000}
        assert client.models.retrieve(NAME) == model
        with pytest.raises(
            NotFoundError, match="no model 'gpt' writes, speaks or draws here, expected talker"
        ) as error:
            client.models.retrieve("gpt")
        assert error.value.code == "model_not_found"


def test_paths_and_methods_that_are_not_served(runtime: ToyRuntime) -> None:
    status, answer = got(f"{url_of(runtime)}/embeddings", data=b"{}")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")
    assert "POST /v1/embeddings is not served here, expected GET /healthz, " in answer["error"]["message"]
    with pytest.raises(urllib.error.HTTPError) as wrong:
        urllib.request.urlopen(f"{url_of(runtime)}/audio/speech")
    headers = wrong.value.headers
    assert (wrong.value.code, headers["allow"], headers["x-request-id"][:2]) == (405, "POST", "r-")
    assert got(f"{url_of(runtime)}/models/", method="DELETE")[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is no JSON"),
        (b"[1]", 400, "the body is [1], expected a JSON object"),
        (b'{"model": "talker", "messages": [{"role": "user", "content": "\xff"}]}', 400, "the body is no JSON"),
        (b'{"model": "\\ud800"}', 400, "the body is no JSON"),
        (b"[" * 100_000, 400, "the body is no JSON"),
        (b'{"seed": 1e999}', 400, "no JSON"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "the body is larger than 262144 bytes: send less"),
    ],
)
def test_bodies_that_are_none(runtime: ToyRuntime, body: bytes, status: int, message: str) -> None:
    found, answer = got(f"{url_of(runtime)}/chat/completions", data=body)
    assert found == status
    assert message in answer["error"]["message"]


def test_over_its_rate_a_client_is_told_when_to_come_again() -> None:
    with served(max_messages_per_s=1.0) as runtime, client_of(runtime) as client:
        client.models.list()
        with pytest.raises(RateLimitError, match="over 1 messages a second") as error:
            client.models.list()
        assert 0 < int(error.value.response.headers["retry-after-ms"]) <= 1000
        assert (error.value.type, error.value.response.headers["x-should-retry"]) == ("rate_limit_error", "true")


def test_the_address_counts_without_a_token(runtime: ToyRuntime) -> None:
    with client_of(runtime) as client:
        client.chat.completions.create(model=NAME, messages=HELLO)
    assert runtime.seen(Submit)[-1].client.startswith("ipv4:127.0.0.1:")


def test_a_forwarded_header_does_not_change_whom_a_call_counts_for(runtime: ToyRuntime) -> None:
    with client_of(runtime, default_headers={"X-Forwarded-For": "1.2.3.4"}) as client:
        client.chat.completions.create(model=NAME, messages=HELLO)
    assert "1.2.3.4" not in runtime.seen(Submit)[-1].client


# ---- start and end


def test_a_budget_is_the_deadline(runtime: ToyRuntime) -> None:
    with client_of(runtime) as client:
        client.chat.completions.create(model=NAME, messages=HELLO, extra_body={"budget_ms": 5000})
        assert runtime.seen(Submit)[-1].deadline_ns is not None
        client.chat.completions.create(model=NAME, messages=HELLO)
        assert runtime.seen(Submit)[-1].deadline_ns is None


def test_a_model_that_does_not_serve_yet(runtime: ToyRuntime) -> None:
    runtime.set_serving(False, "it is warming up")
    try:
        assert got(url_of(runtime).replace("/v1", "/healthz")) == (503, {"status": "not serving"})
        with client_of(runtime) as client, pytest.raises(InternalServerError, match="is not serving") as error:
            client.chat.completions.create(model=NAME, messages=HELLO)
        assert (error.value.status_code, int(error.value.response.headers["retry-after-ms"])) == (503, 1000)
    finally:
        runtime.set_serving(True)


def test_both_ports_serve_the_same_requests(runtime: ToyRuntime) -> None:
    with client_of(runtime) as client, connect(runtime.address) as native:
        client.chat.completions.create(model=NAME, messages=HELLO)
        assert [model.name for model in native.models()] == [NAME]
        counted = runtime.run(runtime.dispatcher.collect_stats())
    assert counted.histograms["server"]["request_us/talker/chat"].total > 0


def test_the_end_of_the_server_ends_a_stream_and_its_request() -> None:
    with served() as runtime, replaced(runtime, "chat", endless(write)), client_of(runtime) as client:
        chunks = client.chat.completions.create(model=NAME, messages=HELLO, stream=True)
        next(iter(chunks))
        runtime.run(runtime.edge.stop(0.0))
        with pytest.raises(APIConnectionError):
            next(iter(chunks))


def test_a_draining_server_answers_what_runs_and_takes_nothing_new() -> None:
    with served() as runtime, client_of(runtime) as client:
        runtime.run(runtime.dispatcher.drain())
        with pytest.raises(InternalServerError, match="draining"):
            client.chat.completions.create(model=NAME, messages=HELLO)
        assert got(url_of(runtime).replace("/v1", "/healthz"))[0] == 503


def test_a_port_in_use_stops_the_start(runtime: ToyRuntime) -> None:
    port = int(url_of(runtime).removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(FailedPrecondition, match=f"http_port {port} of 127.0.0.1 is in use"), served(http_port=port):
        pass


def test_a_deployment_that_generates_nothing_has_no_gateway() -> None:
    config = EdgeConfig(port=0, http_port=0)
    with pytest.raises(FailedPrecondition, match="no model here writes, speaks or draws"), toy_runtime(config):
        pass
    check.check_gateway({"toy": toy_model(), NAME: talker()})


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"pip install 'mstar-rt\[http\]'"):
        check.check_gateway({NAME: talker()})


def test_a_connection_serves_several_requests(runtime: ToyRuntime) -> None:
    connection = http.client.HTTPConnection(url_of(runtime).removeprefix("http://").removesuffix("/v1"))
    for _ in range(3):
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read().startswith(b'{"object":"list"')
    connection.close()
