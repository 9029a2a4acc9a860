"""Clients of a ROUTER socket, told apart by their TCP connections, whose numbers are used again."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_rt.server.compat.gr00t.server import Peers


class Frame:
    def __init__(self, number: int) -> None:
        self._number = number

    def get(self, what: Any) -> Any:
        return "127.0.0.1" if what == "Peer-Address" else self._number


class Peer:
    def __init__(self, identity: bytes, address: str) -> None:
        self.name, self.is_closed = identity + address.encode(), False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def peers() -> Any:
    return Peers(Peer)  # type: ignore[arg-type]


async def test_a_client_is_one_until_its_connection_ends(peers: Any) -> None:
    first = await peers.of(b"a", Frame(5))
    assert first.name == b"a127.0.0.1"
    assert await peers.of(b"a", Frame(5)) is first
    assert await peers.of(b"b", Frame(6)) is not first
    assert peers.gone(5) == b"a"
    await peers.forget(b"a")
    assert first.is_closed
    assert await peers.of(b"a", Frame(5)) is not first


async def test_a_number_that_is_used_again_before_the_monitor_says_so(peers: Any) -> None:
    """The late word of the end of the first is not the end of the second."""
    first, second = await peers.of(b"a", Frame(5)), await peers.of(b"b", Frame(5))
    assert (first.is_closed, second.is_closed) == (True, False)
    assert peers.gone(5) is None
    assert peers.gone(5) == b"b"


async def test_a_client_that_connects_again_by_its_own_name_stays(peers: Any) -> None:
    first = await peers.of(b"a", Frame(5))
    assert await peers.of(b"a", Frame(6)) is first
    assert peers.gone(5) is None
    assert peers.gone(6) == b"a"


async def test_a_connection_that_sent_nothing_ends(peers: Any) -> None:
    await peers.of(b"a", Frame(5))
    assert peers.gone(7) is None


async def test_all_are_closed_at_the_end(peers: Any) -> None:
    both = [await peers.of(b"a", Frame(5)), await peers.of(b"b", Frame(6))]
    await peers.close()
    assert all(peer.is_closed for peer in both)
