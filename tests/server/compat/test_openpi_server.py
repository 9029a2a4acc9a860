"""openpi's protocol over a socket, with the traps of other servers of it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from certificates import new_authority
from control_stream import Held, answer
from openpi_client import SIZE, OpenpiClient, address_of, dialect, observation, packed, served, unpacked
from toy_runtime import Job, ToyRuntime

from mstar_rt.errors import ConfigError, FailedPrecondition
from mstar_rt.message import CancelRequest, CloseSession, OpenSession, Submit
from mstar_rt.server.compat.listeners import Dialects
from mstar_rt.server.compat.openpi.conversation import FULL
from mstar_rt.server.rates import MessageRates

WITHIN_S = 1.0


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with served() as running:
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[OpenpiClient]:
    with OpenpiClient(address_of(runtime)) as opened:
        yield opened


def get(runtime: ToyRuntime, path: str) -> bytes:
    host, port = address_of(runtime).removeprefix("ws://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return plain.recv(4096)


def closing(connection: Any) -> ConnectionClosed:
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv(timeout=10)
    return closed.value


def test_metadata_comes_first_and_then_an_answer_for_each_observation(
    client: OpenpiClient, runtime: ToyRuntime
) -> None:
    assert client.metadata["images"]["observation/image"]["size"] == [SIZE, SIZE]
    assert (client.metadata["action_horizon"], client.metadata["action_dim"]) == (8, 2)
    first, second = client.infer(observation(0)), client.infer(observation(50))
    assert (first["actions"].shape, first["actions"].dtype) == ((8, 2), np.float32)
    assert np.allclose(second["actions"][:, 0], 50.5 + np.arange(8) / 100)
    assert first["server_timing"]["infer_ms"] > 0
    assert "prev_total_ms" not in first["server_timing"]
    assert second["server_timing"]["prev_total_ms"] >= first["server_timing"]["infer_ms"]
    assert second["policy_timing"]["infer_ms"] > 0
    opening = runtime.seen(OpenSession)[0]
    assert (opening.rate_hz, opening.criticality) == (5.0, "control")
    assert opening.client.startswith("ipv4:127.0.0.1:")
    assert [submit.params["instruction"] for submit in runtime.seen(Submit)] == ["go", "go"]


def test_answers_are_cut_by_row_as_openpis_broker_does(client: OpenpiClient) -> None:
    answered = client.infer(observation())
    for row in range(8):
        cut = {key: value[row] for key, value in answered.items() if isinstance(value, np.ndarray)}
        assert cut["actions"].shape == (2,)


def test_a_prompt_may_change_from_one_observation_to_the_next(client: OpenpiClient, runtime: ToyRuntime) -> None:
    for prompt in ("go", "stay"):
        client.infer(observation(prompt=prompt))
    assert [submit.params["instruction"] for submit in runtime.seen(Submit)] == ["go", "stay"]


def test_an_error_is_one_sentence_as_text_and_then_the_end(client: OpenpiClient) -> None:
    with pytest.raises(RuntimeError) as failure:
        client.infer(observation(prompt="go", state=np.zeros(3)))
    assert str(failure.value) == (
        "the observation does not fit policy 'toy', 1 difference: 'state' is not used, known: observation/image, "
        "observation/state, prompt"
    )
    assert closing(client.connection).rcvd.code == 1011  # type: ignore[union-attr]


def test_errors_have_no_paths_and_no_traces(runtime: ToyRuntime, client: OpenpiClient) -> None:
    async def broken(job: Job) -> None:
        job.emit("actions", np.full((8, 2), np.nan, np.float32))
        job.finish()

    runtime.script("act", broken)
    with pytest.raises(RuntimeError) as failure:
        client.infer(observation())
    assert str(failure.value) == "the policy gave actions that are not finite: nothing was sent"
    with OpenpiClient(address_of(runtime)) as other:
        other.connection.send(b"\xc1")
        with pytest.raises(RuntimeError, match="type 0xc1"):
            other.answer()


@pytest.mark.parametrize(
    ("frame", "wrong"),
    [
        ("text", "a text came, expected observations as binary msgpack"),
        (b"", "cut off"),
        (msgspec.msgpack.encode([1]), "the message is a list, expected a map"),
        (msgspec.msgpack.encode(packed(observation()))[:-9], "cut off"),
        (
            msgspec.msgpack.encode({"prompt": {b"__ndarray__": True, b"data": b"", b"dtype": "|O", b"shape": [0]}}),
            "'|O'",
        ),
    ],
)
def test_frames_that_are_no_observation_end_one_connection(runtime: ToyRuntime, frame: bytes | str, wrong: str) -> None:
    with OpenpiClient(address_of(runtime)) as bad, OpenpiClient(address_of(runtime)) as good:
        bad.connection.send(frame)
        with pytest.raises(RuntimeError) as failure:
            bad.answer()
        assert wrong in str(failure.value)
        good.infer(observation())


def test_a_message_that_is_too_large_ends_one_connection(runtime: ToyRuntime) -> None:
    with OpenpiClient(address_of(runtime)) as large:
        large.send(observation(extra=np.zeros(2 << 20, np.uint8)))
        assert closing(large.connection).rcvd.code == 1009  # type: ignore[union-attr]
    with OpenpiClient(address_of(runtime)) as good:
        good.infer(observation())


def test_pings_and_handshakes_are_answered_while_the_model_runs(runtime: ToyRuntime, client: OpenpiClient) -> None:
    held = Held(runtime)
    client.send(observation())
    held.wait()
    assert client.connection.ping().wait(WITHIN_S)
    start = time.monotonic()
    with OpenpiClient(address_of(runtime)) as other:
        assert time.monotonic() - start < WITHIN_S
        assert other.metadata["model"] == "toy"
    held.end()
    client.answer()


def test_whoever_leaves_frees_its_place_at_once(runtime: ToyRuntime) -> None:
    held = Held(runtime)
    leaver = OpenpiClient(address_of(runtime))
    leaver.send(observation())
    held.wait()
    leaver.connection.socket.shutdown(socket.SHUT_RDWR)  # a program that dies: no close frame
    start = time.monotonic()
    runtime.wait_for(CancelRequest)
    runtime.wait_for(CloseSession)
    assert time.monotonic() - start < WITHIN_S


def test_a_silent_client_loses_its_place() -> None:
    with served(dialect(idle_timeout_s=0.05)) as runtime, OpenpiClient(address_of(runtime)) as client:
        closed = closing(client.connection).rcvd
        assert closed is not None
        assert (closed.code, closed.reason) == (1000, "nothing came for 0.05 s (idle_timeout_s)")


def test_one_that_is_not_admitted_reads_why(runtime: ToyRuntime, caplog: pytest.LogCaptureFixture) -> None:
    runtime.refuse_session = ("RESOURCE_EXHAUSTED", "rank 0 has no time for another robot")
    with connect(address_of(runtime), compression=None) as refused:
        closed = closing(refused).rcvd
        assert closed is not None
        assert (closed.code, closed.reason) == (1011, "rank 0 has no time for another robot")
    long = "model 'toy' cannot serve a robot 4 chunks per second (control_hz / replan_every) on time: " + "x" * 99
    runtime.refuse_session = ("RESOURCE_EXHAUSTED", long)
    with connect(address_of(runtime), compression=None) as refused:
        assert closing(refused).rcvd.reason == FULL  # type: ignore[union-attr]
    assert "(control_hz / execute) on time: xxx" in caplog.text


def test_nobody_can_connect_before_the_policy_serves() -> None:
    """openpi's client goes on trying only where the connection is refused."""
    with served(serving=False) as runtime:
        with pytest.raises(ConnectionRefusedError):
            OpenpiClient(address_of(runtime))
        runtime.set_serving(True)
        runtime.run(runtime.edge.dialects.listeners[0].listening.wait())
        with OpenpiClient(address_of(runtime)) as client:
            client.infer(observation())


def test_health_is_asked_for_without_a_key(runtime: ToyRuntime) -> None:
    assert get(runtime, "/healthz").startswith(b"HTTP/1.1 200 OK")
    runtime.set_serving(False, "gone")
    assert get(runtime, "/healthz").startswith(b"HTTP/1.1 503 ")


def test_without_a_right_key_nobody_comes_in(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("arm-1 0123456789abcdef\n")
    with served(dialect(api_keys_file=str(file))) as runtime:
        for header in ({}, {"Authorization": "Api-Key 0123456789abcdeF"}, {"Authorization": "Bearer 0123456789abcdef"}):
            with pytest.raises(InvalidStatus, match="HTTP 401"):
                OpenpiClient(address_of(runtime), additional_headers=header)
        right = {"Authorization": "Api-Key 0123456789abcdef"}
        with OpenpiClient(address_of(runtime), additional_headers=right) as client:
            client.infer(observation())
        assert runtime.seen(OpenSession)[0].client == "arm-1"
        assert get(runtime, "/healthz").startswith(b"HTTP/1.1 200 OK")


async def test_with_tls_a_client_is_known_by_its_certificate(tmp_path: Path) -> None:
    """On one thread: websockets' blocking client reads on one and writes on another, which SSL sockets of Python 3.11
    are not made for: once a handshake was never answered.
    """
    authority = new_authority(tmp_path)
    arm = authority.pair("arm-7")
    with served(tls=authority.server(client_ca=True)) as runtime:
        address = address_of(runtime)
        assert address.startswith("wss://")
        context = ssl.create_default_context(cafile=authority.cert)
        with pytest.raises((ssl.SSLError, ConnectionError, ConnectionClosed, InvalidHandshake)):
            await (await connect_async(address, ssl=context)).recv()
        context.load_cert_chain(arm.cert, arm.key)
        async with connect_async(address, ssl=context, compression=None) as client:
            await client.recv()
            await client.send(msgspec.msgpack.encode(packed(observation())))
            answer = await client.recv()
            assert isinstance(answer, bytes)
            assert unpacked(answer)["actions"].shape
        assert [opening.client for opening in runtime.seen(OpenSession)] == ["arm-7"]


def test_a_client_that_sends_too_much_is_refused_like_any_other() -> None:
    with served(max_messages_per_s=0.01) as runtime, OpenpiClient(address_of(runtime)) as client:
        client.infer(observation())
        with pytest.raises(RuntimeError, match=r"sends over 0\.01 messages a second"):
            client.infer(observation())


def test_text_keys_are_taken_and_given(client: OpenpiClient) -> None:
    def as_text(value: Any) -> Any:
        if isinstance(value, dict):
            return {key.decode() if isinstance(key, bytes) else key: as_text(item) for key, item in value.items()}
        return value

    client.connection.send(msgspec.msgpack.encode(as_text(packed(observation()))))
    answered = msgspec.msgpack.decode(client.connection.recv(timeout=10))  # type: ignore[type-var]
    assert answered["actions"]["dtype"] == "<f4"


def test_vllm_omnis_clients_reset_and_go_on_after_an_error() -> None:
    block = dialect(preset="vllm_omni", actions={"key": ""})
    with served(block) as runtime, OpenpiClient(address_of(runtime)) as client:
        assert client.infer(observation(session_id="a")).shape == (8, 2)
        client.send({"endpoint": "reset"})
        assert client.connection.recv(timeout=10) == "reset successful"
        with pytest.raises(RuntimeError) as failure:
            client.infer({"prompt": "go", "session_id": "a"})
        error = json.loads(str(failure.value))
        assert (error["type"], error["code"]) == ("error", "INVALID_ARGUMENT")
        client.infer(observation(session_id="a"))
        client.infer(observation(session_id="b"))
        for endpoint in ("kill", np.zeros(3)):
            with pytest.raises(RuntimeError, match="expected infer or reset"):
                client.infer(observation(endpoint=endpoint))
        with pytest.raises(RuntimeError, match="session_id is no text and no number"):
            client.infer(observation(session_id=np.zeros(3)))


def test_a_dialect_that_cannot_be_served_stops_the_start(runtime: ToyRuntime) -> None:
    def start(**changes: Any) -> None:
        sessions = runtime.edge.sessions
        rates = MessageRates(None, sessions.clock)
        runtime.run(Dialects([dialect(**changes)], {"toy": runtime.model}, sessions, rates).start())

    with pytest.raises(FailedPrecondition, match=r"does not fit policy 'toy', 1 difference: state has 7 numbers"):
        start(state=[{"key": "q", "size": 7}])
    with pytest.raises(ConfigError, match=r"dialects\[0\].host '0.0.0.0' can be reached"):
        start(host="0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FailedPrecondition, match=f"{port} of 127.0.0.1 is in use"):
            start(port=port)


def test_stopping_says_goodbye(runtime: ToyRuntime) -> None:
    held = Held(runtime)
    idle, busy = OpenpiClient(address_of(runtime)), OpenpiClient(address_of(runtime))
    busy.send(observation())
    held.wait()
    stopping = asyncio.run_coroutine_threadsafe(runtime.edge.dialects.stop(5.0), runtime._loop)
    held.end(answer)
    assert busy.answer()["actions"].shape == (8, 2)
    stopping.result(10)
    assert [closing(each.connection).rcvd.code for each in (idle, busy)] == [1001, 1001]  # type: ignore[union-attr]
