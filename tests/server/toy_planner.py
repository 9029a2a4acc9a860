"""The toy edge with a model that keeps a history of observations and knows every output of a rollout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from toy_runtime import PATCHES, SIZE, WIDTH, Job, ToyRuntime, set_goal, toy_runtime

from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec

MAX_FRAMES = 6
GOAL = ("goal_frames", "goal_latents", "goal_weights")
CONTEXT = ("frames", "context_latents", "state", "extrinsics")


def planner_model() -> ServedModel:
    observer = GraphNode("observer", (*CONTEXT, "executed_action", "history"), ("history", "num_frames"))
    keeper = GraphNode("keeper", GOAL, ("goal",))
    predictor = GraphNode(
        "predictor", (*CONTEXT, *GOAL, "actions", "history", "goal"), ("latent", "pose", "goal_distance")
    )
    planner = GraphNode("planner", (*CONTEXT, *GOAL, "history", "goal"), ("plan_actions", "plan_cost", "elite_std"))
    graph = WalkGraph(
        nodes=(observer, keeper, predictor, planner),
        walks=(
            Walk("observe", observer, emit=("num_frames",), persist=("history",)),
            Walk("set_goal", keeper, persist=("goal",)),
            Walk("rollout", predictor, emit=("latent", "pose", "goal_distance")),
            Walk("plan", planner, emit=("plan_actions", "plan_cost", "elite_std")),
        ),
    )
    return ServedModel("planner", "toy_family", "A model that keeps a history.", graph, _tasks(), "nowhere:nodes")


def _tasks() -> tuple[TaskSpec, ...]:
    window = (
        ParamSpec("context_window", "int", MAX_FRAMES, "frames seen", minimum=1, maximum=MAX_FRAMES),
        ParamSpec("window_stride", "int", None, "frames that the window moves", minimum=1, optional=True),
    )
    use = ParamSpec("goal_use", "str", "last", "how goals count", choices=("last", "per_step", "nearest"))
    output = ParamSpec(
        "output", "str", "latents", "what is answered", choices=("latents", "last_latent", "goal_distance")
    )
    seed = ParamSpec("seed", "int", 0, "seed", minimum=0)
    actions = TensorSpec("actions", ("B", "H", 7), ("float32",), "actions")
    goal = (
        _optional("goal_frames", ("G", SIZE, SIZE, 3), "uint8"),
        _optional("goal_latents", ("G", PATCHES, WIDTH)),
        _optional("goal_weights", ("G",)),
    )
    return (
        TaskSpec(
            "observe", "one more frame", (*_context(1), _optional("executed_action", (7,))),
            (TensorSpec("num_frames", (), ("int64",), "frames seen now"),), ("observe",), window,
        ),
        TaskSpec("set_goal", "keep a goal", goal, (), ("set_goal",), (use,)),
        TaskSpec(
            "rollout", "imagine", (*_context("T"), *goal, actions),
            (_optional("latent", ("B", PATCHES, WIDTH)), _optional("pose", ("B", 7)), _optional("goal_distance", ("B",))),
            ("rollout",), (*window, use, output),
        ),
        TaskSpec(
            "plan", "search", (*_context("T"), *goal),
            (
                _optional("plan_actions", ("H", 7)), _optional("plan_cost", (2,)), _optional("elite_std", ("H", 4)),
            ),
            ("plan",), (*window, use, seed),
        ),
    )  # fmt: skip


def _context(count: int | str) -> tuple[TensorSpec, ...]:
    return (
        _optional("frames", (count, SIZE, SIZE, 3), "uint8"),
        _optional("context_latents", (count, PATCHES, WIDTH)),
        _optional("state", (7,)),
        _optional("extrinsics", (count, 6)),
    )


def _optional(name: str, shape: tuple[int | str, ...], dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, (dtype,), name, optional=True)


class Histories:
    """The first pixel of every frame that each session has observed."""

    def __init__(self) -> None:
        self.of: dict[str | None, list[int]] = defaultdict(list)

    async def observe(self, job: Job) -> None:
        history = self.of[job.submit.session_id]
        history.append(int(job.inputs["frames"].flat[0]))
        job.emit("num_frames", np.array(min(len(history), int(job.submit.params["context_window"]))))  # type: ignore[arg-type]
        job.finish(flags=("seen",))


async def rollout(job: Job) -> None:
    """Only what `output` asks for has elements; step h has latents h and distances h + 0.5."""
    batch, horizon = job.inputs["actions"].shape[:2]
    output = job.submit.params["output"]
    for h in range(horizon):
        shown = output == "latents" or (output == "last_latent" and h == horizon - 1)
        job.emit("pose", np.zeros((batch, 7), np.float32), (h,))
        job.emit("latent", np.full((batch if shown else 0, PATCHES, WIDTH), h, np.float32), (h,))
        job.emit("goal_distance", np.full(batch if output == "goal_distance" else 0, h + 0.5, np.float32), (h,))
    job.finish()


async def plan(job: Job) -> None:
    for i in range(2):
        job.emit("plan_actions", np.full((3, 7), i, np.float32), (i,))
        job.emit("plan_cost", np.array([1, 2], np.float32), (i,))
        job.emit("elite_std", np.full((3, 4), i + 1, np.float32), (i,))
    job.finish(num_iterations=2)


@contextmanager
def planner_runtime() -> Iterator[tuple[ToyRuntime, Histories]]:
    histories = Histories()
    scripts = {"observe": histories.observe, "set_goal": set_goal, "rollout": rollout, "plan": plan}
    with toy_runtime(model=planner_model(), scripts=scripts) as runtime:
        yield runtime, histories
