"""docs/node-reference.md: its model runs exactly as printed, on one worker in this process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.config import WorkerConfig
from mstar_rt.message import Emitted, EmittedGroup, ReleaseScope, StartWalk, WalkDone, WalkFailed
from mstar_rt.model import ServedModel
from mstar_rt.registry import load_object
from mstar_rt.server.warmup import needed_params, zeros
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import load_model
from mstar_rt.worker.worker import Worker

PAGE = Path(__file__).parents[1] / "docs" / "node-reference.md"
FILE = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    folder = tmp_path_factory.mktemp("printed")
    for name, content in FILE.findall(PAGE.read_text()):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    sys.path.insert(0, str(folder))
    yield load_object("chat.model:declare")("chat", "", {})
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "chat"]:
        del sys.modules[name]


class Rig:
    """One worker, and the server and conductor that it talks to."""

    def __init__(self, model: ServedModel, dtype: str = "float32", max_step_ms: float | None = None) -> None:
        self.model, self.clock = model, ManualClock()
        self.loaded = load_model(model, WorkerConfig(rank=0, dtype=dtype, kv_memory_mb=1))
        hub, planes = InProcessHub(), InProcessPlanes()
        self.server, self.conductor, endpoint = (hub.endpoint(name) for name in ("server", "conductor", "worker/0"))
        self.plane = planes.plane(self.server)
        self.worker = Worker(
            {"chat": self.loaded}, endpoint, planes.plane(endpoint), self.clock, max_step_ms=max_step_ms
        )
        self.said: dict[str, list[int]] = {}
        self.turns: dict[str, int] = {}
        self.ends: dict[str, WalkDone | WalkFailed] = {}
        self._num_walks = 0

    def ask(self, request: str, words: Any, session: str = "", deadline_ns: int | None = None, **options: Any) -> None:
        tensors = {"words": np.asarray(words, np.int64)}
        params: dict[str, Any] = dict(self.model.check_request("say", tensors, options))
        ref = self.plane.put("int64", tensors["words"].shape, tensors["words"], ["worker/0"])
        self._num_walks += 1
        self.conductor.send(
            "worker/0",
            StartWalk(
                request, "chat", "say", inputs={"words": ref}, params=params, walk_id=self._num_walks,
                age=self._num_walks, node_ranks=[0, 0], scope=session or request, deadline_ns=deadline_ns,
                criticality="planning", reply_to="server", anytime=True,
            ),
        )  # fmt: skip

    def run(self) -> None:
        """Until every request has ended."""
        while len(self.ends) < self._num_walks:
            self.worker.turn(0.0)
            for envelope in self.conductor.receive(0.0):
                assert isinstance(envelope.message, WalkDone | WalkFailed)
                self.ends[envelope.message.request_id] = envelope.message
                self.conductor.send("worker/0", ReleaseScope(envelope.message.request_id))
        self.worker.turn(0.0)
        for envelope in self.server.receive(0.0):
            message = envelope.message
            if isinstance(message, Emitted | EmittedGroup):
                for record in message.records if isinstance(message, EmittedGroup) else [message]:
                    self._take(record)

    def _take(self, emitted: Emitted) -> None:
        (value,) = np.array(self.plane.view(emitted.tensor))
        if emitted.name == "turns":
            self.turns[emitted.request_id] = int(value)
        else:
            self.said.setdefault(emitted.request_id, []).append(int(value))

    def num_pages_held(self) -> float:
        return self.worker.stats()["pages_held/chat/text"]


def test_requests_that_share_steps_answer_as_if_alone(model: ServedModel) -> None:
    requests = {f"r{count}": list(range(1, 1 + count)) for count in (1, 7, 16, 40)}
    together, alone = Rig(model), Rig(model)
    for request, words in requests.items():
        together.ask(request, words, length=20)
        alone.ask(request, words, length=20)
        alone.run()
    together.run()
    assert together.said == alone.said
    assert together.worker.stats()["steps_total"] < alone.worker.stats()["steps_total"]
    assert together.num_pages_held() == 0


def test_what_is_read_in_parts_is_answered_as_if_read_at_once(model: ServedModel) -> None:
    whole, parts = Rig(model), Rig(model, max_step_ms=6.0)
    code = parts.loaded.engines["read"]._code  # type: ignore[attr-defined]
    read, sizes = code.run, []

    def read_slowly(calls: Any, attention: Any) -> Any:
        sizes.append([len(code.heard(call)) for call in calls])
        parts.clock.advance_ns(sum(sizes[-1]) * 1_000_000)
        return read(calls, attention)

    code.run = read_slowly
    for each in (whole, parts):
        for number in range(3):
            each.ask(f"r{number}", [*range(40)], session="s" if number < 2 else "")
            each.run()
    assert parts.said == whole.said
    assert parts.turns == whole.turns
    assert sizes[0] == [1]
    assert sizes[-8:] == [[5]] * 8


def test_a_session_goes_on_from_what_it_heard_and_from_nothing_that_was_said(model: ServedModel) -> None:
    rig = Rig(model)
    for number, words in enumerate(([3, 1, 4], [1, 5], [9, 2, 6, 5])):
        rig.ask(f"r{number}", words, session="s")
        rig.run()
    rig.ask("at once", [3, 1, 4, 1, 5, 9, 2, 6, 5])
    rig.ask("the last alone", [9, 2, 6, 5])
    rig.run()
    assert rig.said["r2"] == rig.said["at once"] != rig.said["the last alone"]
    assert [rig.turns[request] for request in ("r0", "r1", "r2", "at once")] == [1, 2, 3, 1]
    assert rig.num_pages_held() > 0
    rig.conductor.send("worker/0", ReleaseScope("s"))
    rig.worker.turn(0.0)
    assert rig.num_pages_held() == 0


def test_attention_steps_asked_for_twice_are_as_if_asked_for_once(model: ServedModel) -> None:
    rig, hasty = Rig(model), Rig(model)
    for engine in hasty.loaded.engines.values():
        ask = engine._code.attention_steps  # type: ignore[attr-defined]
        engine._code.attention_steps = lambda call, ask=ask: [ask(call), ask(call)][1]  # type: ignore[attr-defined]
    for each in (rig, hasty):
        for request in ("first", "second"):
            each.ask(request, [2, 7, 1], session="s")
            each.run()
    assert rig.said == hasty.said
    assert rig.num_pages_held() == hasty.num_pages_held()


def test_a_request_that_is_refused_leaves_the_session_and_its_neighbours_alone(model: ServedModel) -> None:
    rig, calm = Rig(model), Rig(model)
    for each in (rig, calm):
        each.ask("first", [1, 2], session="s")
        each.run()
    rig.ask("wrong", [1, 50], session="s")
    rig.ask("neighbour", [4])
    rig.run()
    wrong = rig.ends["wrong"]
    assert isinstance(wrong, WalkFailed)
    assert (wrong.code, wrong.message) == ("INVALID_ARGUMENT", "words are from 1 to 50, expected 0 to 49")
    for each in (rig, calm):
        each.ask("second", [3], session="s")
        each.run()
    assert rig.said["second"] == calm.said["second"]
    assert rig.turns["second"] == 2
    assert "neighbour" in rig.said


def test_an_anytime_request_that_is_late_gives_what_it_has(model: ServedModel) -> None:
    rig = Rig(model)
    rig.ask("late", [5, 6], length=32, deadline_ns=100)
    rig.worker.turn(0.0)
    rig.clock.advance_ns(200)
    rig.run()
    done = rig.ends["late"]
    assert isinstance(done, WalkDone)
    assert done.flags == ["deadline"]
    assert len(rig.said["late"]) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_answers_to_what_warm_up_asks(model: ServedModel, dtype: str) -> None:
    rig, (task,) = Rig(model, dtype), model.tasks
    assert needed_params(task) == {}
    rig.ask("warm", zeros(task)["words"])
    rig.run()
    assert isinstance(rig.ends["warm"], WalkDone), rig.ends
