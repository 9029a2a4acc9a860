"""A policy whose ticks cost what a test says, a planner beside it, and a conductor that admits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conductor_rig import RecordingEndpoint, X, Y

from mstar_rt.clock import ManualClock
from mstar_rt.conductor import Conductor
from mstar_rt.config import PlacementRule, WorkerConfig
from mstar_rt.config_admission import AdmissionConfig
from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.message import (
    CloseSession,
    Finished,
    NodeTime,
    OpenSession,
    ParamField,
    RequestFailed,
    SessionOpened,
    StartWalk,
    Submit,
    WalkDone,
    Warmed,
    WarmUp,
    WorkerReady,
)  # fmt: skip
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec
from mstar_rt.placement import PlacedModel, Placement, place

SEE = GraphNode("see", ("x",), ("seen",))
BEGIN = GraphNode("begin", ("x",), ("noisy",))
DENOISE = GraphNode("denoise", ("noisy", "seen"), ("noisy",))
FINISH = GraphNode("finish", ("noisy",), ("y",))
FLOW = Loop("flow", DENOISE, times="num_denoise_steps", limit=50, carry={"noisy": "noisy"})
GRAPH = WalkGraph(
    nodes=(SEE, BEGIN, DENOISE, FINISH),
    walks=(
        Walk("act", Sequential(SEE, BEGIN, FLOW, FINISH), emit=("y",)),
        Walk("look", Sequential(SEE), emit=("seen",)),
    ),
)
PARAMS = (
    ParamSpec("num_denoise_steps", "int", 10, "steps", minimum=1, maximum=50),
    ParamSpec("chunking", "str", "none", "mode", choices=("none", "guided")),
    ParamSpec("instruction", "str", None, "what to do", optional=True),
    ParamSpec("seed", "int", 0, "seed"),
)
ACT = TaskSpec("act", "act", (X,), (Y,), ("act",), PARAMS, criticality="control")
LOOK = TaskSpec("look", "look", (X,), (replace(Y, name="seen"),), ("look",))
MODEL = ServedModel("m", "toy", "for tests", GRAPH, (ACT, LOOK), "nowhere:nodes")
ONE = (PlacementRule("m"),)
REPLICAS = (PlacementRule("m"), PlacementRule("m", ("denoise",), (1, 2)))

Costs = Mapping[str, float]
"""Milliseconds of a request by node; of `denoise`, of one iteration."""
MS: Costs = {"see": 2.0, "begin": 0.0, "denoise": 1.0, "finish": 0.0}
"""12 ms a tick with 10 denoise steps."""


def placed(rules: Sequence[PlacementRule]) -> Placement:
    return place({"m": PlacedModel(GRAPH, {})}, rules, range(3))


class AdmissionRig:
    def __init__(
        self,
        rules: Sequence[PlacementRule] = ONE,
        max_step_ms: float | None = None,
        scheduling: str = "deadline",
        **admission: Any,
    ) -> None:
        self.placement = placed(rules)
        self.endpoint = RecordingEndpoint()
        self.clock = ManualClock(start_ns=1_000_000_000)
        workers = [WorkerConfig(rank=rank, max_step_ms=max_step_ms, scheduling=scheduling) for rank in range(3)]
        config = AdmissionConfig(**admission)
        self.conductor = Conductor({"m": MODEL}, self.placement, self.endpoint, self.clock, workers, config)
        self.pids = dict.fromkeys(range(3), 100)
        self.num_names = 0
        for rank in self.placement.ranks_of("m"):
            self.come(rank)

    def come(self, rank: int) -> None:
        self.pids[rank] += 1
        self.conductor.handle(WorkerReady(rank, self.pids[rank], ["m"], 1.0))

    def lose(self, rank: int) -> None:
        self.conductor.worker_lost(rank, f"rank {rank} died", self.pids[rank])

    def warm_up(self, ms: Costs = MS, num: int = 3) -> None:
        """Every warm-up that was asked for runs, first cold, and goes well."""
        for asked in [message for _, message in self.endpoint.take() if isinstance(message, WarmUp)]:
            for task in ("act", "look"):
                for index in range(num + 1):
                    slow = 50.0 if index == 0 else 1.0
                    self.run(task, {node: each * slow for node, each in ms.items()}, warmup_on=asked.replicas,
                             is_cold=index == 0)  # fmt: skip
            self.conductor.handle(Warmed("m", asked.generation))

    # --- what a server says ------------------------------------------------------------------------------------------

    def open(
        self, rate_hz: float, client: str = "", takes_over: str = "", deadline_s: float | None = None, **params: Any
    ) -> str | RequestFailed:
        """The session's name, or why it was refused."""
        session_id = self.name("s")
        self.endpoint.take()
        self.conductor.handle(
            OpenSession(
                session_id,
                "m",
                client,
                criticality="control" if rate_hz else "planning",
                task="act",
                rate_hz=rate_hz,
                params=params,
                takes_over=takes_over,
                deadline_s=deadline_s,
            )
        )
        [(to, answer)] = self.endpoint.take()
        assert to == "server"
        if isinstance(answer, SessionOpened):
            return session_id
        assert isinstance(answer, RequestFailed)
        return answer

    def close(self, session_id: str) -> None:
        self.conductor.handle(CloseSession(session_id))

    def submit(self, task: str, **fields: Any) -> tuple[str, list[tuple[int, StartWalk]]] | RequestFailed:
        """The request and what was started of it, or why it was refused."""
        self.endpoint.take()
        request_id = self.name("r")
        params: dict[str, ParamField] = {"num_denoise_steps": 10, "chunking": "none", "seed": self.num_names}
        params |= fields.pop("params", {})
        self.conductor.handle(Submit(request_id, "m", task, {}, params if task == "act" else {}, **fields))
        said = self.endpoint.take()
        for _, message in said:
            if isinstance(message, RequestFailed):
                return message
        started = [(int(to.partition("/")[2]), start) for to, start in said if isinstance(start, StartWalk)]
        return request_id, started

    def tick(self, session_id: str, ms: Costs = MS, **fields: Any) -> None:
        """A quarter of a second after the last one."""
        self.clock.advance_ns(250_000_000)
        self.run("act", ms, criticality="control", client=session_id, **fields)

    def run(self, task: str, ms: Costs, batch: int = 1, **fields: Any) -> None:
        """A request from its beginning to its end, in steps that it shares with `batch` - 1 others."""
        submitted = self.submit(task, **fields)
        assert not isinstance(submitted, RequestFailed), submitted
        self.finish(submitted, ms, batch)

    def finish(self, submitted: tuple[str, list[tuple[int, StartWalk]]], ms: Costs, batch: int = 1) -> None:
        request_id, started = submitted
        for rank, start in started:
            program = self.placement.program("m", start.walk)
            steps = int(start.params.get("num_denoise_steps", 1))  # type: ignore[arg-type]
            times = {}
            for node, at in zip(program.nodes, start.node_ranks, strict=True):
                if at == rank:
                    num = steps if node.name == "denoise" else 1
                    times[node.name] = NodeTime(num, 0.0, num * ms[node.name] * 1e3 * batch, num * (batch - 1))
            done = WalkDone(request_id, start.walk_id, rank, 0, times, {}, {"flow": steps})
            self.conductor.handle(done)
        assert any(isinstance(message, Finished) for _, message in self.endpoint.take())

    # --- what it looks like ------------------------------------------------------------------------------------------

    def used(self, rank: int = 0) -> float:
        return self.conductor.stats()[f"admitted_utilisation/{rank}"]

    def name(self, kind: str) -> str:
        self.num_names += 1
        return f"{kind}{self.num_names}"
