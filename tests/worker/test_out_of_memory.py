"""An allocation of the runtime's own that fails, anywhere: who needed it gets an error, nobody else does, nothing is lost."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.worker.many_ranks import ManyRanks, same
from tests.worker.test_many_ranks import alone, params_of

pytestmark = pytest.mark.usefixtures("through_shared_memory")

REQUESTS = {"r0": "generate", "r1": "speak", "r2": "denoise", "r3": "generate"}
SESSION: list[tuple[str, str, dict[str, Any]]] = [
    ("look", "look", {}),
    ("hear", "listen", {}),
    ("answer", "answer", params_of("generate", 3)),
    ("hear again", "listen", {}),
]
ALLOCATIONS = {
    "reading a tensor": "torch.frombuffer",
    "copying for others": "mstar_rt.transport.tensor_plane.ArenaPlane.put",
    "reading pages": "mstar_rt.cache.pool.KVPool.read_tokens",
    "writing pages": "mstar_rt.cache.pool.KVPool.write_tokens",
}


class Failing:
    """Calls through, but for one call of all while it is `on`, which finds no memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        self.num_calls, self.fails_at, self.on = 0, -1, False
        owner, _, name = path.rpartition(".")
        holder = _resolve(owner)
        usual = getattr(holder, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += self.on
            if self.on and self.num_calls == self.fails_at:
                raise MemoryError
            return usual(*args, **kwargs)

        monkeypatch.setattr(holder, name, call)


def _resolve(path: str) -> Any:
    """A module, or a class in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def run(seed: int, failing: Failing, fails_at: int) -> ManyRanks:
    ranks = ManyRanks("all apart", seed)
    for name, task in REQUESTS.items():
        ranks.submit(name, task, **params_of(task, 3))
    failing.num_calls, failing.fails_at, failing.on = 0, fails_at, True
    ranks.run(list(REQUESTS))
    failing.on = False
    return ranks


@pytest.mark.parametrize("what", ALLOCATIONS)
def test_it_fails_one_request(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    for task in dict.fromkeys(REQUESTS.values()):
        for name in REQUESTS:
            alone(task, 3, 3, name)
    failing = Failing(monkeypatch, ALLOCATIONS[what])
    run(0, failing, -1).assert_clean()
    num_calls, num_failed = failing.num_calls, 0
    assert num_calls >= 4
    for seed, fails_at in enumerate(range(1, num_calls + 1, max(1, num_calls // 15))):
        ranks = run(seed, failing, fails_at)
        ranks.assert_clean()
        num_failed += len(ranks.refused())
        assert len(ranks.refused()) <= 1
        for name in ranks.refused():
            assert ranks.failed(name).code == "INTERNAL"
        for name in ranks.finished_names():
            same(ranks.values(name), alone(REQUESTS[name], 3, 3, name))
    assert num_failed >= 4


@pytest.mark.parametrize("what", ALLOCATIONS)
def test_it_costs_what_a_session_left_no_more_than_a_request(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Ranks ask one another for what earlier requests left. Who cannot give it says so."""
    failing = Failing(monkeypatch, ALLOCATIONS[what])

    def run(seed: int, fails_at: int) -> ManyRanks:
        ranks = ManyRanks("all apart", seed)
        failing.num_calls, failing.fails_at = 0, fails_at
        ranks.open_session("s")
        for name, task, params in SESSION:
            ranks.submit(name, task, session="s", **params)
            failing.on = True
            ranks.run([name])
            failing.on = False
        ranks.close_session("s")
        ranks.assert_clean()
        return ranks

    whole = run(0, -1)
    num_calls = failing.num_calls
    assert num_calls
    for seed, fails_at in enumerate(range(1, num_calls + 1)):
        ranks = run(seed, fails_at)
        for name in ranks.refused():
            assert ranks.failed(name).code in ("INTERNAL", "UNAVAILABLE", "FAILED_PRECONDITION")
        if not ranks.refused():
            for name, _, _ in SESSION:
                same(ranks.values(name), whole.values(name))
