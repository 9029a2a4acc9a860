"""A batch that fails is retried one by one; a batch without pages is halved; nothing is run more often than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from mstar_rt.engine import run_isolating_failures
from mstar_rt.errors import Internal, PagesExhausted
from mstar_rt.graph import GraphNode
from mstar_rt.model import NodeCall, NodeResult

NODE = GraphNode("n", ("x",), ("y",))


class ScriptedEngine:
    """Runs `act` on the ids of a batch, and keeps what it was asked."""

    node = NODE

    def __init__(self, act: Callable[[list[str]], None]) -> None:
        self._act = act
        self.batches: list[list[str]] = []

    def batch_key(self, call: NodeCall) -> None:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        ids = [call.request_id for call in calls]
        self.batches.append(ids)
        self._act(ids)
        return [NodeResult({"y": request_id}) for request_id in ids]  # type: ignore[dict-item]


def calls(ids: str) -> list[NodeCall]:
    return [NodeCall(i, i, "w", (), {}, {}, lambda: 0) for i in ids]


def test_success_is_one_step() -> None:
    engine = ScriptedEngine(lambda ids: None)
    outcomes = run_isolating_failures(engine, calls("abc"))
    assert [outcome.result and outcome.result.outputs["y"] for outcome in outcomes] == ["a", "b", "c"]
    assert engine.batches == [["a", "b", "c"]]


def test_after_a_failure_each_is_retried_alone_once() -> None:
    def act(ids: list[str]) -> None:
        if "b" in ids:
            raise ValueError("boom")

    engine = ScriptedEngine(act)
    outcomes = run_isolating_failures(engine, calls("abc"))
    assert engine.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, Internal)
    assert "boom" not in str(outcomes[1].error)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 5])
def test_without_pages_what_fits_runs_and_the_rest_waits(room: int) -> None:
    left = [room]

    def act(ids: list[str]) -> None:
        if len(ids) > left[0]:
            raise PagesExhausted("full")
        left[0] -= len(ids)

    engine = ScriptedEngine(act)
    outcomes = run_isolating_failures(engine, calls("abcde"))
    assert sum(outcome.result is not None for outcome in outcomes) == room
    assert sum(outcome.must_wait for outcome in outcomes) == 5 - room


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_would_end_a_process_ends_one_request(kind: type[BaseException]) -> None:
    def act(ids: list[str]) -> None:
        if "b" in ids:
            raise kind

    outcomes = run_isolating_failures(ScriptedEngine(act), calls("abc"))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, Internal)
