"""Tokens, TLS and certificates of clients, as the SDK, the commands and everybody else meet them."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from certificates import Authority, Pair, new_authority
from control_stream import POLICY, SIZE, Robot, policy_runtime
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2, health_pb2_grpc
from toy_runtime import ToyRuntime

from mstar_rt.cli import main
from mstar_rt.client import connect, connect_async
from mstar_rt.client.credentials import Credentials
from mstar_rt.clock import ManualClock
from mstar_rt.errors import ConfigError, InvalidArgument, ResourceExhausted, Unauthenticated, Unavailable
from mstar_rt.message import OpenSession, Submit
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import runtime_pb2, runtime_pb2_grpc
from mstar_rt.server.edge import EdgeConfig, check_edge_config
from mstar_rt.server.tls import TlsFiles, ssl_context
from mstar_rt.server.watching import WatchConfig, watched

SERVICES = ("Robot", "WorldModel", "Tasks", "Runtime", "Generation")
ARM_1, ARM_2, WRONG = "arm-1-has-this-token", "arm-2-has-this-token", "nobody-has-this-token"
ONE_SCALE = replace(POLICY, normalizations=("lab",))
IMAGES, STATE = {name: np.zeros((SIZE, SIZE, 3), np.uint8) for name in ("top", "wrist")}, np.zeros(3, np.float32)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


def tokens_in(folder: Path, text: str = f"arm-1 {ARM_1}\narm-2 {ARM_2}\n") -> str:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def edge(**fields: Any) -> EdgeConfig:
    return EdgeConfig(port=0, max_message_bytes=1 << 20, **fields)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyRuntime]:
    config = edge(tokens_file=tokens_in(tmp_path_factory.mktemp("keys")), reflection=True)
    with policy_runtime(ONE_SCALE, config=config) as running:
        yield running


# ---- tokens


def all_methods() -> list[str]:
    """That the proto files declare, and some that nothing does."""
    services = [Default().FindServiceByName(f"mstar.v1.{name}") for name in SERVICES]
    found = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]
    reflected = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    return [*found, reflected, "/grpc.health.v1.Health/List", "/no.such.Service/Method"]


@pytest.mark.parametrize("header", [None, "", f"Bearer {WRONG}", ARM_1, f"Basic {ARM_1}", f"Bearer {ARM_1}x"])
def test_no_method_is_served_without_a_token(guarded: ToyRuntime, header: str | None) -> None:
    metadata = None if header is None else [("authorization", header)]
    with grpc.insecure_channel(guarded.address) as channel:
        for method in all_methods():
            unary: Any = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as refused:
                unary(b"", metadata=metadata, timeout=30)
            stream: Any = channel.stream_stream(method)
            with pytest.raises(grpc.RpcError) as refused_too:
                next(stream(iter(()), metadata=metadata, timeout=30))
            codes = {refused.value.code(), refused_too.value.code()}
            assert codes == {grpc.StatusCode.UNAUTHENTICATED}, method
    assert guarded.seen(Submit) == []


def test_health_answers_probes_which_have_no_token(guarded: ToyRuntime) -> None:
    with grpc.insecure_channel(guarded.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="toy")
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(request)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


def test_the_refusal_says_what_to_do_and_nothing_of_what_was_given(
    guarded: ToyRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        with connect(guarded.address) as client, pytest.raises(Unauthenticated, match="connect with token=") as none:
            client.models()
        with (
            connect(guarded.address, token=WRONG) as client,
            pytest.raises(Unauthenticated, match="not one of") as wrong,
        ):
            client.models()
        with connect(guarded.address, token=ARM_1) as client:
            client.models()
    said = "".join([caplog.text, str(none.value), str(wrong.value), *getattr(wrong.value, "__notes__", ())])
    assert "request r-" in said
    assert not any(token in said for token in (WRONG, ARM_1, ARM_2))


def test_what_was_refused_is_counted(guarded: ToyRuntime) -> None:
    with connect(guarded.address, token=ARM_1) as client, connect(guarded.address) as stranger:
        before = client.stats().processes["server"]["calls_refused/token"]
        with pytest.raises(Unauthenticated):
            stranger.models()
        assert client.stats().processes["server"]["calls_refused/token"] == before + 1


def test_the_blocking_sdk_does_everything_with_a_token(guarded: ToyRuntime) -> None:
    with connect(guarded.address, token=ARM_1) as client:
        client.wait_until_serving(timeout_s=30)
        assert client.describe("toy").tasks
        with client.control("toy", control_hz=20, instruction="push", hold="repeat_last") as robot:
            (session,) = client.sessions()
            assert session.client == "arm-1"
            assert robot.act(images=IMAGES, state=STATE).kind == "hold"
            robot.wait_for_first_action(timeout_s=30)
    assert guarded.seen(OpenSession)[-1].client == "arm-1"


async def test_the_asyncio_sdk_does_everything_with_a_token(guarded: ToyRuntime) -> None:
    async with connect_async(guarded.address, token=ARM_2) as client:
        await client.wait_until_serving(timeout_s=30)
        assert (await client.describe("toy")).tasks
        async with client.control("toy", control_hz=20, instruction="push", hold="repeat_last"):
            (session,) = await client.sessions()
            assert session.client == "arm-2"
        async with client.task_session("toy"):
            assert guarded.seen(OpenSession)[-1].client == "arm-2"


def test_a_session_with_a_token_that_is_not_known_does_not_try_for_ever(guarded: ToyRuntime) -> None:
    with connect(guarded.address, token=WRONG) as client, pytest.raises(Unauthenticated):
        client.control("toy", control_hz=20, instruction="push").__enter__()


def test_a_token_that_is_taken_away_is_of_no_use_from_the_next_call_on(tmp_path: Path) -> None:
    with (
        policy_runtime(config=edge(tokens_file=tokens_in(tmp_path))) as runtime,
        connect(runtime.address, token=ARM_1) as one,
        connect(runtime.address, token=ARM_2) as two,
    ):
        assert one.models()
        tokens_in(tmp_path, ARM_2)
        with pytest.raises(Unauthenticated):
            one.models()
        assert two.models()


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ünicode", 5])
def test_a_token_that_cannot_be_sent_is_refused_where_it_is_given(token: Any) -> None:
    with pytest.raises(InvalidArgument, match="the token is empty, or holds characters that cannot be sent") as refused:
        connect("127.0.0.1:1", token=token)
    assert not token or str(token) not in str(refused.value)
    assert ARM_1 not in repr(Credentials(token=ARM_1))


# ---- TLS


def test_with_tls_the_server_is_known_and_strangers_are_not_served(authority: Authority, tmp_path: Path) -> None:
    other = new_authority(tmp_path)
    config = edge(tls=authority.server(), tokens_file=tokens_in(tmp_path))
    with policy_runtime(ONE_SCALE, config=config) as runtime:
        with connect(runtime.address, tls_ca_file=authority.cert, token=ARM_1) as client:
            client.wait_until_serving(timeout_s=30)
            with client.control("toy", control_hz=20, instruction="push"):
                assert client.sessions()[0].client == "arm-1"
        with connect(runtime.address, tls_ca_file=authority.cert) as client, pytest.raises(Unauthenticated):
            client.models()
        with (
            connect(runtime.address, tls_ca_file=other.cert, token=ARM_1) as client,
            pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.models()
        with connect(runtime.address, token=ARM_1) as client, pytest.raises(Unavailable, match="no answer from"):
            client.models()


async def test_the_asyncio_sdk_speaks_tls(authority: Authority) -> None:
    with policy_runtime(ONE_SCALE, config=edge(tls=authority.server())) as runtime:
        async with (
            connect_async(runtime.address, tls_ca_file=authority.cert) as client,
            client.control("toy", control_hz=20, instruction="push"),
        ):
            assert (await client.sessions())[0].client.startswith("ipv4:")


def test_with_a_client_ca_only_its_clients_come_in_and_are_known_by_their_certificates(authority: Authority) -> None:
    arm = authority.pair("arm-7")
    with policy_runtime(ONE_SCALE, config=edge(tls=authority.server(client_ca=True))) as runtime:
        with (
            connect(
                runtime.address, tls_ca_file=authority.cert, tls_cert_file=arm.cert, tls_key_file=arm.key
            ) as client,
            client.control("toy", control_hz=20, instruction="push"),
        ):
            assert client.sessions()[0].client == "arm-7"
        with connect(runtime.address, tls_ca_file=authority.cert) as client, pytest.raises(Unavailable):
            client.models()
        with grpc.insecure_channel(runtime.address) as channel, pytest.raises(grpc.RpcError):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)


def test_a_certificate_that_is_replaced_counts_from_the_next_connection_on(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By gRPC and by what else listens."""
    files = TlsFiles(str(tmp_path / "cert"), str(tmp_path / "key"))

    def install(pair: Pair) -> None:
        Path(files.cert).write_bytes(Path(pair.cert).read_bytes())
        Path(files.key).write_bytes(Path(pair.key).read_bytes())
        Path(files.key).chmod(0o600)

    def shown() -> set[str]:
        return {ssl.get_server_certificate(("127.0.0.1", port), timeout=30) for port in ports}

    async def close() -> None:  # on its own loop, where its connections end
        other.close()

    install(authority.pair("server"))
    with policy_runtime(config=edge(tls=files)) as runtime:
        other: asyncio.Server = runtime.run(
            asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=ssl_context(files))
        )
        ports = (runtime.edge.port, other.sockets[0].getsockname()[1])
        first = shown()
        assert len(first) == 1
        Path(files.cert).write_text("half a certificate")
        assert shown() == first
        assert "what was read before stays in use" in caplog.text
        install(authority.pair("server-2"))
        assert len(shown()) == 1
        assert shown() != first
        runtime.run(close())


def test_a_server_s_own_certificate_is_enough_to_know_it(tmp_path: Path) -> None:
    itself = new_authority(tmp_path, "subjectAltName=IP:127.0.0.1")
    with (
        policy_runtime(config=edge(tls=TlsFiles(itself.cert, itself.key))) as runtime,
        connect(runtime.address, tls_ca_file=itself.cert) as client,
    ):
        assert client.models()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": "none"}, "tls_key_file: cannot open none"),
        ({"cert": "none"}, "tls_cert_file: cannot open none"),
        ({"client_ca": "none"}, "tls_client_ca_file: cannot open none"),
        ({"key": "other"}, "are no PEM certificate and the key to it, without a password: KEY_VALUES_MISMATCH"),
        ({"cert": "text"}, "are no PEM certificate and the key to it"),
        ({"client_ca": "text"}, "tls_client_ca_file .* holds no PEM certificate"),
        ({"key": "open"}, "tls_key_file: others may use .*run chmod 600"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused_before_anything_listens(
    authority: Authority, tmp_path: Path, change: dict[str, str], sentence: str
) -> None:
    (tmp_path / "text").write_text("not a certificate")
    (tmp_path / "open").write_bytes(Path(authority.server().key).read_bytes())
    (tmp_path / "open").chmod(0o644)
    places = {
        "none": "none",
        "text": tmp_path / "text",
        "open": tmp_path / "open",
        "other": authority.pair("arm-7").key,
    }
    files = replace(authority.server(), **{name: str(places[value]) for name, value in change.items()})
    with pytest.raises(ConfigError, match=sentence):
        check_edge_config(edge(tls=files))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tls_ca_file": "none"}, "tls_ca_file: cannot open none"),
        ({"tls_ca_file": __file__}, "tls_ca_file .* holds no PEM certificate"),
        ({"tls_ca_file": ""}, "tls_ca_file is '', expected the path of a PEM file"),
        ({"tls_cert_file": "a"}, "tls_cert_file and tls_key_file are a pair"),
        ({"tls_cert_file": "a", "tls_key_file": "b"}, "tls_cert_file is given without tls_ca_file"),
    ],
)
def test_files_that_a_client_cannot_use_are_refused_at_connect(fields: dict[str, str], sentence: str) -> None:
    for open_client in (connect, connect_async):
        with pytest.raises(InvalidArgument, match=sentence):
            open_client("127.0.0.1:1", **fields)


# ---- what one client may do


def test_messages_over_the_rate_are_refused_with_when_to_come_back_and_others_are_served(tmp_path: Path) -> None:
    clock = ManualClock(10**9)
    config = edge(tokens_file=tokens_in(tmp_path), max_messages_per_s=5.0)
    with (
        policy_runtime(config=config, clock=clock) as runtime,
        connect(runtime.address, token=ARM_1) as one,
        connect(runtime.address, token=ARM_1) as one_again,
        connect(runtime.address, token=ARM_2) as two,
    ):
        for _ in range(5):
            one.models()
        with pytest.raises(ResourceExhausted, match="client 'arm-1' sends over 5 messages a second") as refused:
            one.models()
        assert refused.value.retry_after_s == pytest.approx(0.2)
        with pytest.raises(ResourceExhausted):
            one_again.models()
        assert two.stats().processes["server"]["calls_refused/rate"] == 2
        clock.advance_ns(200_000_000)
        assert one.models()


def test_a_stream_that_sends_too_much_ends_with_the_reason() -> None:
    config = edge(max_messages_per_s=3.0)
    with (
        policy_runtime(config=config, clock=ManualClock(10**9)) as runtime,
        grpc.insecure_channel(runtime.address) as channel,
    ):
        robot = Robot(channel, epoch=0)
        robot.hear("opened")
        for number in range(3):
            robot.say(heartbeat=wire.Heartbeat(number=number))
        ended = robot.ends_with()
    assert ended.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "sends over 3 messages a second" in str(ended.details())
    assert dict(ended.trailing_metadata())["retry-after-ms"] == "333"


def test_a_message_that_is_too_long_is_refused_with_both_sizes_on_every_kind_of_call(guarded: ToyRuntime) -> None:
    metadata = [("authorization", f"Bearer {ARM_1}")]
    with grpc.insecure_channel(guarded.address, [("grpc.max_send_message_length", -1)]) as channel:
        for method, kind in (
            ("/mstar.v1.WorldModel/Encode", "unary_unary"),
            ("/mstar.v1.Robot/Control", "stream_stream"),
        ):
            large = bytes((1 << 20) + 1)
            call: Any = getattr(channel, kind)(method)
            with pytest.raises(grpc.RpcError, match=r"larger than max \(1048577 vs. 1048576\)") as refused:
                _ = (
                    call(large, metadata=metadata)
                    if kind == "unary_unary"
                    else list(call(iter([large]), metadata=metadata))
                )
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (
            runtime_pb2_grpc.RuntimeStub(channel).ServerInfo(runtime_pb2.ServerInfoRequest(), metadata=metadata).version
        )


# ---- commands and metrics


def test_commands_take_the_token_from_a_file_or_the_environment(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{ARM_1}\n")
    token.chmod(0o600)
    with policy_runtime(config=edge(tls=authority.server(), tokens_file=tokens_in(tmp_path))) as runtime:
        look = ["top", runtime.address, "--json", "--period-s", "0.2"]
        assert main([*look, "--tls-ca-file", authority.cert, "--token-file", str(token)]) == 0
        assert json.loads(capsys.readouterr().out)["address"] == runtime.address
        assert main([*look, "--tls-ca-file", authority.cert]) == 2
        assert "set MSTAR_TOKEN for a command" in capsys.readouterr().err
        monkeypatch.setenv("MSTAR_TLS_CA_FILE", authority.cert)
        monkeypatch.setenv("MSTAR_TOKEN", ARM_2)
        assert main(["trace", runtime.address, "--out", str(tmp_path / "trace.json")]) == 0
        token.chmod(0o644)
        assert main([*look, "--token-file", str(token)]) == 2
        assert "others may use" in capsys.readouterr().err


def test_metrics_are_for_those_who_may_use_the_server(authority: Authority, tmp_path: Path) -> None:
    config = WatchConfig(metrics_port=0, tls=authority.server(), tokens_file=tokens_in(tmp_path))
    trusting = ssl.create_default_context(cafile=authority.cert)

    def scrape(address: str, context: ssl.SSLContext | None, token: str | None) -> tuple[int, str | None]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), context=context) as answer:
                return answer.status, answer.headers["WWW-Authenticate"]
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers["WWW-Authenticate"]

    async def serve_and_scrape(runtime: ToyRuntime) -> None:
        async with watched(config, runtime.dispatcher, ManualClock()) as address:
            assert address.startswith("https://127.0.0.1:")
            assert await asyncio.to_thread(scrape, address, trusting, ARM_1) == (200, None)
            for token in (WRONG, None):
                assert await asyncio.to_thread(scrape, address, trusting, token) == (401, "Bearer")
            with pytest.raises(OSError):
                await asyncio.to_thread(scrape, address.replace("https", "http"), None, ARM_1)

    with policy_runtime() as runtime:
        runtime.run(serve_and_scrape(runtime))
