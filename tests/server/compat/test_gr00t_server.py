"""GR00T's protocol over a socket, spoken by a plain REQ socket."""

from __future__ import annotations

import queue
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from control_stream import Held
from gr00t_client import BLOCK, Client, gr00t, observation
from openpi_client import address_of, dialect, served
from toy_runtime import ToyRuntime

from mstar_rt.config_dialects import DialectConfig
from mstar_rt.errors import MstarError
from mstar_rt.message import CancelRequest, CloseSession, OpenSession, Submit

WITHIN_S = 1.0


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with served(gr00t()) as running:
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[Client]:
    opened = Client(runtime)
    yield opened
    opened.close()


def test_an_observation_is_answered_by_actions_by_key(client: Client, runtime: ToyRuntime) -> None:
    actions, info = client.get_action(50)
    assert {key: value.shape for key, value in actions.items()} == {"arm": (1, 8, 1), "hand": (1, 8, 1)}
    assert np.allclose(actions["arm"][0, :, 0], 50.5 + np.arange(8) / 100)
    assert info["timing"]["total_ms"] > 0
    assert client.call("reset", {"options": None}) == {}
    client.get_action()
    assert len(runtime.seen(OpenSession)) == 1
    assert [submit.params["instruction"] for submit in runtime.seen(Submit)] == ["go", "go"]
    assert runtime.seen(OpenSession)[0].client.startswith("ipv4:127.0.0.1/")


def test_ping_and_modalities_need_no_session(client: Client, runtime: ToyRuntime) -> None:
    assert client.call("ping")["status"] == "ok"
    modalities = client.call("get_modality_config")
    assert {name: config["as_json"]["modality_keys"] for name, config in modalities.items()} == {
        "video": ["ego"], "state": ["arm", "hand"], "language": ["task"], "action": ["arm", "hand"],
    }  # fmt: skip
    assert modalities["action"]["as_json"]["delta_indices"] == list(range(8))
    assert not runtime.seen(OpenSession)
    runtime.set_serving(False, "gone")
    with pytest.raises(RuntimeError, match="policy 'toy' does not serve"):
        client.call("ping")


@pytest.mark.parametrize(
    ("endpoint", "data", "wrong"),
    [
        ("kill", None, "clients may not stop this server"),
        ("get_actoin", None, "did you mean 'get_action'?"),
        ("get_action", None, "'video.ego' is nothing, expected an image as an array"),
        ("get_action", {"observation": {}, "seed": 1}, "the data of get_action has 'seed'"),
        ("get_action", {"observation": observation(), "options": {"a": 1}}, "get_action has options"),
        ("get_action", {"observation": np.zeros(3)}, "observation is a ndarray, expected a map"),
        ("get_action", np.zeros(3), "data is a ndarray, expected a map"),
        ("reset", {"options": np.zeros(3)}, "options is a ndarray, expected a map"),
        ("ping", {"x": 1}, "the data of ping has 'x'"),
    ],
)
def test_errors_are_one_sentence_and_the_client_goes_on(client: Client, endpoint: str, data: Any, wrong: str) -> None:
    with pytest.raises(RuntimeError) as failure:
        client.call(endpoint, data)
    assert wrong in str(failure.value)
    client.get_action()


def test_what_is_no_message_is_answered_too(client: Client) -> None:
    for raw in (b"", b"\xc1", b"\x90", msgspec.msgpack.encode({"endpoint": [1]}), msgspec.msgpack.encode({b"\xff": 1})):
        client.socket.send(raw)
        with pytest.raises(RuntimeError):
            client.hear()
    client.socket.send_multipart([b"a", b"b"])
    with pytest.raises(RuntimeError, match="parts"):
        client.hear()


def test_a_message_that_is_too_large_ends_one_connection(client: Client, runtime: ToyRuntime) -> None:
    client.socket.setsockopt(zmq.RCVTIMEO, 50)
    client.socket.send(b"\0" * (2 << 20))
    with pytest.raises(zmq.Again):
        client.hear()
    other = Client(runtime)
    other.get_action()
    other.close()


def test_others_are_answered_while_one_waits(client: Client, runtime: ToyRuntime) -> None:
    held = Held(runtime)
    client.send("get_action", {"observation": observation()})
    held.wait()
    other = Client(runtime)
    start = time.monotonic()
    assert other.call("ping")["status"] == "ok"
    assert time.monotonic() - start < WITHIN_S
    other.close()
    held.end()
    client.hear()


def test_whoever_leaves_frees_its_place_at_once(runtime: ToyRuntime) -> None:
    held = Held(runtime)
    leaver = Client(runtime)
    leaver.send("get_action", {"observation": observation()})
    held.wait()
    leaver.close()
    start = time.monotonic()
    runtime.wait_for(CancelRequest)
    runtime.wait_for(CloseSession)
    assert time.monotonic() - start < WITHIN_S


def test_a_silent_client_loses_its_place_and_gets_another() -> None:
    with served(gr00t(idle_timeout_s=0.05)) as runtime:
        client = Client(runtime)
        client.get_action()
        runtime.wait_for(CloseSession)
        client.get_action()
        assert len(runtime.seen(OpenSession)) == 2
        client.close()


def test_without_a_right_token_nothing_is_done(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("arm-1 0123456789abcdef\n")
    with served(gr00t(api_keys_file=str(file), kill=True)) as runtime:
        for fields in ({}, {"api_token": "0123456789abcdeF"}, {"api_token": 5}):
            stranger = Client(runtime, **fields)
            for endpoint in ("ping", "kill", "get_action"):
                with pytest.raises(RuntimeError, match="without one of its keys"):
                    stranger.call(endpoint)
            stranger.close()
        known = Client(runtime, api_token="0123456789abcdef")
        known.get_action()
        assert runtime.seen(OpenSession)[0].client == "arm-1"
        known.close()


def test_the_port_is_on_loopback_and_nowhere_else_than_it_is_told() -> None:
    assert DialectConfig("gr00t", "toy").host == DialectConfig("openpi", "toy").host == "127.0.0.1"
    with served(gr00t(host="127.0.0.2"), dialect(host="127.0.0.2")) as runtime:
        for index, listener in enumerate(runtime.edge.dialects.listeners):
            host, port = address_of(runtime, index).rpartition("/")[2].split(":")
            assert host == "127.0.0.2", listener.name
            socket.create_connection((host, int(port)), timeout=5).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.parametrize("block", [{}, BLOCK])
def test_a_port_that_is_taken_before_the_policy_serves_ends_the_deployment(block: dict[str, Any]) -> None:
    with served(dialect(**block), serving=False) as runtime, socket.socket() as thief:
        failed: queue.SimpleQueue[MstarError] = queue.SimpleQueue()
        runtime.edge.dialects.on_failed = failed.put
        port = int(address_of(runtime).rpartition(":")[2])
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        runtime.set_serving(True)
        assert f"dialect, {port} of 127.0.0.1 is in use" in str(failed.get(timeout=10))


def test_a_client_that_sends_too_much_is_refused_like_any_other() -> None:
    with served(gr00t(), max_messages_per_s=0.01) as runtime:
        client = Client(runtime)
        client.get_action()
        with pytest.raises(RuntimeError, match=r"sends over 0\.01 messages a second"):
            client.get_action()
        client.close()


def test_kill_asks_the_server_to_stop_where_that_is_allowed() -> None:
    with served(gr00t(kill=True)) as runtime:
        killed: list[bool] = []
        runtime.edge.dialects.on_kill = lambda: killed.append(True)
        client = Client(runtime)
        assert client.call("kill") is None
        assert killed == [True]
        client.close()
