"""The mixed benchmark: the deployments that it starts, what it makes of its measurements, its picture."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from benchmarks import mixed
from benchmarks.mixed import capacity, decisions, figures, robots
from benchmarks.mixed.cases import ALONE, CASES, MIXED, PAINTERS, Case, Measured, Moment
from benchmarks.mixed.deployments import DEADLINE, FCFS, FILES, NO_ADMISSION, SYSTEMS, Reached, variants
from benchmarks.mixed.loads import Came
from benchmarks.mixed.robots import PERIOD_S, Tick
from benchmarks.mixed.timeline import Scene, plot, scene_of
from benchmarks.report import Report, Row
from mstar_rt.config import parse_deployment
from mstar_rt.errors import DeadlineExceeded, ResourceExhausted
from mstar_rt.trace import Span

MS = 1_000_000


def ticks(*latencies_ms: float | None) -> list[Tick]:
    return [
        Tick(number * 50 * MS, number * 50 * MS + MS, None if took is None else took / 1e3)
        for number, took in enumerate(latencies_ms)
    ]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_each_order_has_workers_and_models_of_its_own(num_workers: int) -> None:
    config = parse_deployment({**variants(FILES[num_workers], SYSTEMS), "admission": NO_ADMISSION})
    assert [worker.scheduling for worker in config.workers] == [each for each in SYSTEMS for _ in range(num_workers)]
    assert len({worker.rank for worker in config.workers}) == 3 * num_workers
    assert len({dataclasses.replace(worker, rank=0, scheduling=DEADLINE) for worker in config.workers}) == 1
    ranks_of = {rule.model: rule.ranks for rule in config.placement}
    for index, system in enumerate(SYSTEMS):
        for model in ("policy", "planner", "painter"):
            assert ranks_of[f"{model}-{system}"] == tuple(range(index * num_workers, (index + 1) * num_workers))
    assert all(Path(model.checkpoint).exists() for model in config.models if model.checkpoint)


def test_the_two_deployments_differ_in_their_workers_only() -> None:
    one, two = (parse_deployment(variants(FILES[number], (DEADLINE,))) for number in (1, 2))
    assert one.models == two.models
    assert {dataclasses.replace(worker, rank=0) for worker in two.workers} == set(one.workers)


def test_what_is_asked_for_is_measured() -> None:
    assert (mixed.FULL.seconds, mixed.FULL.workers, robots.CONTROL_HZ) == (120.0, (1, 2), 20.0)
    assert decisions.NUM_READY == (1, 16, 256)
    assert min(capacity.FULL.seconds(number) * number * 20 for number in capacity.FULL.crowds) >= 1000


def test_a_late_chunk_and_none_at_all_are_missed() -> None:
    some = ticks(10.0, 49.0, 51.0, None)
    assert [tick.missed for tick in some] == [False, False, True, True]
    assert figures.missed_percent(some) == 50.0
    np.testing.assert_allclose(figures.latencies_s(some), [0.010, 0.049, 0.051, PERIOD_S])


def test_a_robot_notes_what_came_of_each_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is dropped, the third overtaken by the fourth."""
    monkeypatch.setattr(robots, "PERIOD_S", 1e-4)
    monkeypatch.setattr(robots, "LEAD_S", 0.0)

    class Session:
        num_sent = 0

        async def send(self, images: Mapping[str, np.ndarray], state: np.ndarray) -> int:
            self.num_sent += 1
            return self.num_sent

        async def wait_for_chunk(self, seq: int, timeout_s: float) -> Any:
            if seq == 2:
                raise DeadlineExceeded("too late")
            return SimpleNamespace(seq=4 if seq == 3 else seq, latency_s=0.001)

    scene: Any = SimpleNamespace(images={}, state=np.zeros(2))
    session: Any = Session()
    found = asyncio.run(robots.drive(session, [scene], lambda number: number < 4))
    assert [tick.latency_s for tick in found] == [0.001, None, None, 0.001]
    assert [tick.sent_ns >= tick.due_ns for tick in found] == [True] * 4


def measured(seconds: float, took: list[Tick], steps: int, busy: Mapping[str, float]) -> Measured:
    came = Came(list(range(steps)), [0], [0], [100.0], [3])
    return Measured(seconds, took, [came] if steps else [], dict(busy))


def test_the_figures_and_their_bounds() -> None:
    """The painters alone make 100 steps a second; control and planning leave them six tenths, in which they make 45."""
    found: dict[Case, Measured] = {case: measured(10.0, ticks(*[10.0] * 100), 450, {}) for case in CASES}
    found[PAINTERS] = measured(2.0, [], 200, {"generation": 2.0})
    found[MIXED[DEADLINE]] = measured(
        10.0, ticks(*[12.0] * 98, 22.9, None), 450, {"control": 2.5, "planning": 1.5, "generation": 5.5}
    )
    report = Report("mixed", {})
    figures.add_contention(report, Reached("", {DEADLINE: (0,)}, 0.008), found)
    values = [(check.value, check.holds) for check in report.checks]
    assert values[0] == (0.0, True)
    assert values[1] == (1.0, True)
    assert values[2][1] is False, "22.9 ms and one without a chunk, over 1.5 x 10 ms and a step"
    assert values[3] == (pytest.approx(0.75), True)
    rows = {(row.case, row.system, row.metric): row.value for row in report.rows}
    assert rows["1 worker, mixed", DEADLINE, "missed"] == 1.0
    assert rows["1 worker, mixed: load", DEADLINE, "plans"] == pytest.approx(0.1)
    assert rows["1 worker, mixed: load", DEADLINE, "control"] == pytest.approx(25.0)
    assert ("1 worker, painters", DEADLINE, "missed") not in rows


def test_segments_add_up() -> None:
    whole = Measured()
    for begin, end in ((0, 2), (5, 6)):
        counters = [
            {"busy_us/control": at * 1e5, "over_bound/planner/encode": at, "steps_total": at} for at in (begin, end)
        ]
        whole.add(Moment(begin * 10**9, counters[0]), Moment(end * 10**9, counters[1]))
    assert (whole.seconds, whole.over_bound) == (3.0, 3.0)
    assert whole.busy_s == {"control": pytest.approx(0.3)}


def test_only_what_came_in_the_segment_counts() -> None:
    came = Came([1, 5, 9], [4, 10], [2, 6], [20.0, 60.0], [2, 3])
    within = came.within(4, 9)
    assert (within.previews_ns, within.pictures_ns, within.plan_ms, within.plan_iterations) == ([5], [4], [60.0], [3])


def test_what_the_load_tells_is_read_back() -> None:
    came = Came([1], [2], [3], [4.0], [5])
    came.note("plan DEADLINE_EXCEEDED")
    assert Came(**json.loads(json.dumps(dataclasses.asdict(came)))) == came


class FakeSession:
    """Answers at once."""

    num_sent = 0

    async def __aenter__(self) -> FakeSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send(self, images: Mapping[str, np.ndarray], state: np.ndarray) -> int:
        self.num_sent += 1
        return self.num_sent

    async def wait_for_chunk(self, seq: int, timeout_s: float) -> Any:
        return SimpleNamespace(seq=seq, latency_s=0.06 if seq % 4 == 0 else 0.01)


def test_robots_join_until_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[FakeSession] = []

    def opens(*_: object) -> FakeSession:
        if len(joined) == 3:
            raise ResourceExhausted("no time for a fourth")
        joined.append(FakeSession())
        return joined[-1]

    monkeypatch.setattr(robots, "PERIOD_S", 1e-3)
    monkeypatch.setattr(capacity, "open_session", opens)
    monkeypatch.setattr(capacity, "JOIN_EVERY_S", 0.0)
    monkeypatch.setattr(capacity, "SETTLE_S", 0.0)
    report, client, scene = Report("mixed", {}), Any, SimpleNamespace(images={}, state=np.zeros(2))
    effort = capacity.Effort((2, 4), 0.0, 0, 0.1)
    asyncio.run(capacity.admit(report, client, [scene], effort, 3))  # type: ignore[arg-type]
    assert report.settings["refusal"] == "no time for a fourth"
    values = {row.metric: row.value for row in report.rows}
    assert values["missed"] > 10
    assert [check.value for check in report.checks[:2]] == [3, 3]
    assert [check.holds for check in report.checks] == [True, True, False]


@pytest.mark.parametrize("num_ready", [1, 16])
def test_decisions_are_timed(num_ready: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "NUM_DECISIONS", 20)
    monkeypatch.setattr(decisions, "NUM_WARMUPS", 5)
    for system in SYSTEMS:
        cost = decisions.scheduling_cost(num_ready, system)
        assert [len(seconds) for seconds in cost.values()] == [20, 20]


def test_the_picture(tmp_path: Path) -> None:
    steps = [
        Span("denoise", "control", 100 * MS, 105 * MS, ("r1",)),
        Span("paint", "generation", 105 * MS, 113 * MS, ("r2",)),
        Span("paint", "generation", 990 * MS, 999 * MS, ("r2",)),
    ]
    seen = ticks(10.0, 60.0, None)
    scene = scene_of(DEADLINE, {"worker/0": steps, "worker/1": steps, "server": ()}, (0,), seen)
    assert scene.steps == steps[:2], "of its own workers, and of the time around its ticks"
    rows = [Row("1 worker, alone", system, "missed", 0.1, "%") for system in (DEADLINE, FCFS)]
    rows += [Row(f"{n} robots at 20 Hz, 1 worker", "with admission", "missed by the worst", n, "%") for n in (2, 4)]
    plot(Report("mixed", {}, rows), str(tmp_path / "x.png"), [scene, Scene(FCFS, (), seen)])
    assert len(np.unique(image.imread(tmp_path / "x.png").reshape(-1, 4), axis=0)) > 20
    assert ALONE in CASES
