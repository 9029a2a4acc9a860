"""A plain driver of walks: the engines of a worker, without worker, processes or messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mstar_rt.config import WorkerConfig
from mstar_rt.engine import Engine
from mstar_rt.model import NodeCall, NodeResult, ServedModel
from mstar_rt.program import Firing, WalkRun
from mstar_rt.worker.loaded import LoadedModel, load_model


@dataclass
class Served:
    """What one request gave: emitted values by name in order, persisted tensors, flags."""

    emitted: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    persisted: Mapping[str, torch.Tensor] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


@dataclass
class Request:
    """`session`: the name of the session that it belongs to."""

    task: str
    tensors: Mapping[str, torch.Tensor]
    params: Mapping[str, Any] = field(default_factory=dict)
    deadline_ns: int | None = None
    session: str = ""


class WalkDriver:
    """Runs requests in lockstep: all calls that are ready at one node and may share a step make one batch, whatever
    request they are of.

    `seen` has what every run of a node was given and gave, by its name. `predicted_ns` are the costs of a step that
    nodes are told, by node.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.now_ns = 0
        self.step_ns = 0
        self.predicted_ns: dict[str, int] = {}
        self.batches: list[tuple[str, int]] = []
        self.persisted: dict[str, dict[str, torch.Tensor]] = {}
        self.num_requests = 0
        self.seen: dict[str, list[tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]]] = {}
        self.share_of: Callable[[int], int] | None = None

    def run(self, *requests: Request, stagger: int = 0) -> list[Served]:
        """With `stagger` each request joins that many batches after the one before it."""
        running = [_Running(self, request) for request in requests]
        num_batches = 0
        while any(one.ready for one in running):
            joined = running[: 1 + num_batches // stagger] if stagger else running
            present = joined if any(one.ready for one in joined) else running
            name = next(one.ready[0].node.name for one in present if one.ready)
            turn = [(one, firing) for one in present for firing in one.ready if firing.node.name == name]
            num_batches += 1
            engine = self.loaded.engines[name]
            try:
                calls = [one.call(firing, engine) for one, firing in turn]
                keys = [engine.batch_key(call) for call in calls]
                turn = [entry for entry, key in zip(turn, keys, strict=True) if key == keys[0]]
                results = engine.run([call for call, key in zip(calls, keys, strict=True) if key == keys[0]])
            except BaseException:
                for one in running:
                    one.fail()
                raise
            self.batches.append((name, len(turn)))
            self.now_ns += self.step_ns
            for (one, firing), result in zip(turn, results, strict=True):
                one.take(firing, result)
        for one in running:
            one.end()
        return [one.served for one in running]

    def run_one(self, task: str, tensors: Mapping[str, torch.Tensor], **params: Any) -> Served:
        return self.run(Request(task, tensors, params))[0]

    def run_in(self, session: str, task: str, tensors: Mapping[str, torch.Tensor], **params: Any) -> Served:
        """A request of a session, which sees what earlier ones of it persisted and left in caches."""
        return self.run(Request(task, tensors, params, session=session))[0]

    def close(self, session: str) -> None:
        self.persisted.pop(session, None)
        self.loaded.memory.release_scope(session)

    @property
    def num_pages_held(self) -> int:
        return sum(pool.allocator.num_held for pool in self.loaded.pools.values())


class _Running:
    def __init__(self, driver: WalkDriver, request: Request) -> None:
        self.driver, self.request, self.served = driver, request, Served()
        model = driver.loaded.model
        arrays = {name: tensor.numpy() for name, tensor in request.tensors.items()}
        client_gives = {spec.name for spec in model.task(request.task).inputs}
        self.params = model.check_request(
            request.task, {name: array for name, array in arrays.items() if name in client_gives}, request.params
        )
        driver.num_requests += 1
        self.request_id = f"request {driver.num_requests}"
        self.scope = request.session or self.request_id
        self.walks = list(model.task(request.task).walks)
        self.given = driver.persisted.get(request.session, {}) | dict(request.tensors)
        self.begun: dict[Firing, NodeCall] = {}
        self.num_done: dict[Firing, int] = {}
        self._begin_walk()

    def _begin_walk(self) -> None:
        self.walk = self.walks.pop(0)
        program = self.driver.loaded.programs[self.walk]
        self.walk_run = WalkRun(program, {name: self.params[name] for name in program.params})
        self.memory = self.driver.loaded.memory.begin(self.request_id, self.scope, list(self.driver.loaded.pools))
        self.ready = self.walk_run.start({name: self.given.get(name) for name, _ in program.inputs})

    def call(self, firing: Firing, engine: Engine) -> NodeCall:
        if firing not in self.begun:
            self.begun[firing] = self._new_call(firing)
            self.begun[firing].num_items = engine.num_items(self.begun[firing])
        call, done = self.begun[firing], self.num_done.get(firing, 0)
        num_left = call.num_items - done
        share = num_left if self.driver.share_of is None else self.driver.share_of(num_left)
        call.part = None if share == call.num_items else range(done, done + share)
        return call

    def _new_call(self, firing: Firing) -> NodeCall:
        cache = firing.node.cache
        return NodeCall(
            self.request_id, self.scope, self.walk, firing.iteration, firing.inputs, self.params,
            lambda: self.driver.now_ns, self.request.deadline_ns, self.memory.store(cache) if cache else None,
            firing.name, self.params.get("seed", 0), self.driver.predicted_ns.get,
        )  # fmt: skip

    def take(self, firing: Firing, result: NodeResult) -> None:
        call = self.begun[firing]
        if call.part is not None and not call.is_last_part:
            call.progress, self.num_done[firing] = result.progress, call.part.stop
            return
        assert self.driver.loaded.checks.check_result(firing.node.name, result) is None
        self.driver.seen.setdefault(firing.node.name, []).append((firing.inputs, result.outputs))
        self.ready.remove(firing)
        progress = self.walk_run.complete(firing, result.outputs, result.leave)
        self.ready += progress.ready
        self.served.flags += [flag for flag in result.flags if flag not in self.served.flags]
        for emission in progress.emitted:
            fault = self.driver.loaded.checks.check_emission(self.walk, emission.name, emission.value)
            assert fault is None, fault
            self.served.emitted.setdefault(emission.name, []).append(emission.value)
        if progress.finished:
            self.served.persisted = {**self.served.persisted, **self.walk_run.persisted}
            self.given |= self.walk_run.persisted
            self.memory.commit()
            if self.walks:
                self._begin_walk()

    def end(self) -> None:
        self.driver.loaded.memory.end_request(self.request_id, keep=True)
        if self.request.session:
            self.driver.persisted.setdefault(self.request.session, {}).update(self.served.persisted)

    def fail(self) -> None:
        self.driver.loaded.memory.end_request(self.request_id, keep=False)


def drive(model: ServedModel, dtype: str = "float32") -> WalkDriver:
    return WalkDriver(load_model(model, WorkerConfig(rank=0, dtype=dtype, kv_memory_mb=64)))
