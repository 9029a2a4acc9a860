"""A model with walks over several ranks, its placements, and a recorder of everything that the conductor says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mstar_rt.clock import ManualClock
from mstar_rt.conductor import Conductor
from mstar_rt.config import PlacementRule, WorkerConfig
from mstar_rt.graph import GraphNode, Parallel, Sequential, Walk, WalkGraph
from mstar_rt.message import (
    Message,
    NodeTime,
    SegmentRef,
    Submit,
    TensorRef,
    WalkDone,
    Warmed,
    WarmUp,
    WorkerReady,
    decode,
    encode,
)
from mstar_rt.model import KVSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.placement import PlacedModel, Placement, place

X = TensorSpec("x", ("N",), ("float32",), "numbers")
Z = TensorSpec("z", ("N",), ("float32",), "numbers", optional=True)
Y = TensorSpec("y", ("N",), ("float32",), "numbers")

SPLIT = GraphNode("split", ("x",), ("a",))
SIDE = GraphNode("side", ("a",), ("s",))
JOIN = GraphNode("join", ("l", "r", "z"), ("y",))
KEEP = GraphNode("keep", ("x",), ("kept",))
RECALL = GraphNode("recall", ("kept", "x"), ("y",))
PREFILL = GraphNode("prefill", ("x",), ("p",), engine="kv_cache", cache="memory")
DECODE = GraphNode("decode", ("x",), ("y",), engine="kv_cache", cache="memory")
DRAFT = GraphNode("draft", ("x",), ("y",), engine="kv_cache", cache="scratch")

GRAPH = WalkGraph(
    nodes=(SPLIT, SIDE, JOIN, KEEP, RECALL, PREFILL, DECODE, DRAFT),
    walks=(
        Walk(
            "apart",
            Sequential(
                SPLIT,
                Parallel(SIDE.bind(outputs={"s": "l"}, alias="left"), SIDE.bind(outputs={"s": "r"}, alias="right")),
                JOIN,
            ),
            emit=("y",),
        ),
        Walk("keep", Sequential(KEEP), persist=("kept",)),
        Walk("recall", Sequential(RECALL), emit=("y",)),
        Walk("prefill", Sequential(PREFILL), emit=("p",)),
        Walk("decode", Sequential(DECODE), emit=("y",)),
        Walk(
            "branches",
            Parallel(
                DECODE.bind(outputs={"y": "c"}, alias="cond"),
                DECODE.bind(outputs={"y": "u"}, alias="uncond"),
            ),
            emit=("c", "u"),
        ),
        Walk("draft", Sequential(DRAFT), emit=("y",)),
    ),
)  # fmt: skip
TASKS = {
    "apart": ("apart",),
    "keep": ("keep",),
    "recall": ("recall",),
    "keep_recall": ("keep", "recall"),
    "prefill": ("prefill",),
    "talk": ("prefill", "decode"),
    "branches": ("branches",),
    "draft_twice": ("draft", "apart", "draft"),
    "all": ("keep", "prefill", "apart", "recall", "branches", "decode"),
}
PLACEMENTS: dict[str, tuple[PlacementRule, ...]] = {
    "one": (),
    "apart": (
        PlacementRule("m", ("left",), (1,)),
        PlacementRule("m", ("right",), (2,)),
        PlacementRule("m", ("keep", "prefill", "cond"), (1,)),
        PlacementRule("m", ("recall", "uncond", "draft"), (2,)),
        PlacementRule("m", ("decode",), (2,), ("decode",)),
    ),
    "replicas": (
        PlacementRule("m", ("keep", "recall", "prefill", "decode", "draft"), (1, 2)),
        PlacementRule("m", ("side",), (0, 1, 2)),
    ),
}  # fmt: skip


def model(name: str = "m") -> ServedModel:
    tasks = tuple(_task(name, walks) for name, walks in TASKS.items())
    caches = {
        "memory": KVSpec(1, 1, 16, 4, 64, lifetime="session"),
        "scratch": KVSpec(1, 1, 16, 4, 64, lifetime="request"),
    }
    return ServedModel(name, "toy", "for tests", GRAPH, tasks, "nowhere:nodes", caches)


def _task(name: str, walks: tuple[str, ...]) -> TaskSpec:
    """It takes and gives what its walks read and emit."""
    bound = [GRAPH.bound(walk) for walk in walks]
    read = {tensor for walk in bound for tensor in walk.inputs}
    emitted = sorted({tensor for walk in bound for tensor, _ in walk.emits})
    inputs = tuple(spec for spec in (X, Z) if spec.name in read)
    return TaskSpec(name, name, inputs, tuple(replace(Y, name=tensor) for tensor in emitted), walks)


def placed(rules: Sequence[PlacementRule], ranks: Sequence[int]) -> Placement:
    return place({"m": PlacedModel(GRAPH, model().cache_lifetimes)}, rules, ranks)


class RecordingEndpoint:
    """What the conductor sends, in order and as it would arrive."""

    address = "conductor"
    num_rejected = 0

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.forgotten: list[str] = []

    def send(self, to: str, message: Message) -> None:
        self.sent.append((to, decode(encode(message))))

    def take(self) -> list[tuple[str, Message]]:
        taken, self.sent = self.sent, []
        return taken

    def forget_peer(self, address: str) -> None:
        self.forgotten.append(address)

    def receive(self, timeout_s: float | None) -> list[Any]:
        raise AssertionError("the tests hand messages in")

    async def receive_async(self) -> list[Any]:
        raise AssertionError("the tests hand messages in")

    def before_receive(self, action: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


class Rig:
    """A conductor over a placement; ranks 0 to 2 exist, and are ready after `ready()`."""

    def __init__(self, placement: str | Placement = "apart", num_ranks: int = 3) -> None:
        ranks = range(num_ranks)
        self.placement = placed(PLACEMENTS[placement], ranks) if isinstance(placement, str) else placement
        self.endpoint = RecordingEndpoint()
        self.clock = ManualClock(start_ns=1_000_000_000)
        self.conductor = Conductor(
            {"m": model()}, self.placement, self.endpoint, self.clock, [WorkerConfig(rank=rank) for rank in ranks]
        )
        self._num_blocks = 0

    def ready(self) -> Rig:
        for rank in self.placement.ranks_of("m"):
            self.conductor.handle(WorkerReady(rank, 100 + rank, ["m"], 1.0))
        self.warm_up()
        return self

    def warm_up(self) -> list[WarmUp]:
        """Every warm-up that was asked for since the last look goes well."""
        asked = self.told("server", WarmUp)
        for warm_up in asked:
            self.conductor.handle(Warmed("m", warm_up.generation))
        self.endpoint.take()
        return asked

    def block(self) -> TensorRef:
        """A tensor in the server's shared memory."""
        self._num_blocks += 1
        return TensorRef("float32", (1,), segment=SegmentRef("server", 1, 2, b"a", 0, 4, self._num_blocks))

    def submit(self, request_id: str, task: str, **fields: Any) -> None:
        inputs = fields.pop("inputs", {"x": self.block()})
        self.conductor.handle(Submit(request_id, fields.pop("model", "m"), task, inputs, {}, **fields))

    def done(self, start: Any, rank: int, **fields: Any) -> None:
        """`rank` has completed the part that `start` (or a ResumeWalk) began."""
        told = {"num_emitted": 1, "node_times": {"n": NodeTime(2, 1.0, 4.0, 1)}, "loop_us": {"l": 4.0},
                "num_iterations": {"l": 2}, "flags": ["f"], **fields}  # fmt: skip
        self.conductor.handle(WalkDone(start.request_id, start.walk_id, rank, **told))

    def said(self, *kinds: type) -> list[tuple[str, Any]]:
        """What the conductor has said since the last call, of these kinds."""
        return [(to, message) for to, message in self.endpoint.take() if not kinds or isinstance(message, kinds)]

    def told(self, to: str, *kinds: type) -> list[Any]:
        """The same, to one address."""
        return [message for address, message in self.said(*kinds) if address == to]
