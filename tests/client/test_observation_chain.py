"""What the client believes of a history, against a server that refuses at random and answers late."""

from __future__ import annotations

import random
from collections import deque

import pytest

from mstar_rt.client.observation_chain import ObservationChain


def test_the_next_follows_the_last_that_is_not_known_to_have_failed() -> None:
    chain: ObservationChain[int] = ObservationChain()
    assert chain.newest is None
    chain.sent(2)
    assert chain.newest == 2
    chain.accepted(2)
    chain.sent(3)
    chain.sent(4)
    assert chain.newest == 4
    assert chain.followed_by(4) == 3
    assert chain.failed(3)
    assert 4 not in chain
    assert chain.newest == 2, "4 follows 3, so it fails too"
    chain.sent(5)
    assert not chain.failed(4)
    assert chain.newest == 5, "the failure of 4 is no news, and none of 5"
    assert not chain.failed(1)
    chain.accepted(1)
    assert chain.newest == 5, "other messages are none of its business"


class Server:
    """Takes an observation if it follows the newest, and not always then; its answers arrive when they are asked for."""

    def __init__(self, rng: random.Random) -> None:
        self.history: list[int] = []
        self._rng = rng
        self._answers: deque[tuple[int, bool]] = deque()

    def observe(self, message_id: int, follows: int | None) -> None:
        newest = self.history[-1] if self.history else None
        accepted = follows == newest and self._rng.random() < 0.7
        if accepted:
            self.history.append(message_id)
        self._answers.append((message_id, accepted))

    def answer_some(self, chain: ObservationChain) -> None:
        for _ in range(self._rng.randint(0, len(self._answers))):
            message_id, accepted = self._answers.popleft()
            chain.accepted(message_id) if accepted else chain.failed(message_id)

    def answer_all(self, chain: ObservationChain) -> None:
        while self._answers:
            self.answer_some(chain)


@pytest.mark.parametrize("seed", range(50))
def test_once_all_is_answered_client_and_server_agree(seed: int) -> None:
    server, chain = Server(random.Random(seed)), ObservationChain()
    for message_id in range(1, 60):
        server.observe(message_id, chain.newest)
        chain.sent(message_id)
        server.answer_some(chain)
    server.answer_all(chain)
    assert chain.newest == (server.history[-1] if server.history else None)
    assert len(server.history) > 5
