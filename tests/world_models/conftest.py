"""Golden data and a plain driver of walks: the engines of a worker, without worker, processes or messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mstar_rt.config import WorkerConfig
from mstar_rt.model import NodeCall
from mstar_rt.program import WalkRun
from mstar_rt.worker.loaded import LoadedModel, load_model
from world_models.vjepa2.checkpoint import Networks, load_networks
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config
from world_models.vjepa2.model import declare

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = VJepa2Config(
    "tiny",
    EncoderConfig(dim=64, depth=2, num_heads=2, mlp_dim=256, image_size=64),
    PredictorConfig(latent_dim=64, dim=64, depth=2, num_heads=2, mlp_dim=256, grid_rows=4, grid_columns=4),
)


@pytest.fixture(scope="session")
def tiny_config() -> VJepa2Config:
    return TINY


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    return GOLDEN / "vjepa2_ac_tiny.pt"


@pytest.fixture(scope="session")
def tiny(tiny_checkpoint: Path) -> Networks:
    return load_networks(TINY, tiny_checkpoint)


@pytest.fixture(scope="session")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_ac_tiny.io.safetensors")


@pytest.fixture(scope="session")
def golden_cem() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    settings = json.loads((GOLDEN / "vjepa2_ac_cem.json").read_text())
    return load_file(GOLDEN / "vjepa2_ac_cem.safetensors"), settings


@pytest.fixture(scope="session")
def golden_poses() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_pose_update.safetensors")


@pytest.fixture(scope="session")
def tiny_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("tiny") / "tiny.json"
    TINY.to_json(path)
    return {"config": str(path)}


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
    """Runs requests in lockstep: all calls that are ready at one node make one batch, whatever request they are of.

    `seen` has what every run of a node was given and gave, by its name.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.now_ns = 0
        self.step_ns = 0
        self.batches: list[tuple[str, int]] = []
        self.persisted: dict[str, dict[str, torch.Tensor]] = {}
        self.num_requests = 0
        self.seen: dict[str, list[tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]]] = {}

    def run(self, *requests: Request) -> list[Served]:
        running = [_Running(self, request) for request in requests]
        while any(one.ready for one in running):
            name = next(one.ready[0].node.name for one in running if one.ready)
            turn = [(one, firing) for one in running for firing in one.ready if firing.node.name == name]
            engine = self.loaded.engines[name]
            try:
                results = engine.run([one.call(firing) for one, firing in turn])
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
        (walk,) = model.task(request.task).walks
        program = driver.loaded.programs[walk]
        self.walk_run = WalkRun(program, {name: self.params[name] for name in program.params})
        driver.num_requests += 1
        self.request_id = f"request {driver.num_requests}"
        self.scope = request.session or self.request_id
        self.memory = driver.loaded.memory.begin(self.request_id, self.scope, list(driver.loaded.pools))
        given = driver.persisted.get(request.session, {}) | dict(request.tensors)
        self.ready = self.walk_run.start({name: given.get(name) for name, _ in program.inputs})

    def call(self, firing: Any) -> NodeCall:
        cache = firing.node.cache
        return NodeCall(
            self.request_id, self.scope, self.request.task, firing.iteration, firing.inputs, self.params,
            lambda: self.driver.now_ns, self.request.deadline_ns, self.memory.store(cache) if cache else None,
        )  # fmt: skip

    def take(self, firing: Any, result: Any) -> None:
        assert self.driver.loaded.checks.check_result(firing.node.name, result) is None
        self.driver.seen.setdefault(firing.node.name, []).append((firing.inputs, result.outputs))
        self.ready.remove(firing)
        progress = self.walk_run.complete(firing, result.outputs, result.leave)
        self.ready += progress.ready
        self.served.flags += [flag for flag in result.flags if flag not in self.served.flags]
        for emission in progress.emitted:
            fault = self.driver.loaded.checks.check_emission(self.request.task, emission.name, emission.value)
            assert fault is None, fault
            self.served.emitted.setdefault(emission.name, []).append(emission.value)

    def end(self) -> None:
        self.served.persisted = dict(self.walk_run.persisted)
        self.memory.commit()
        self.driver.loaded.memory.end_request(self.request_id, keep=True)
        if self.request.session:
            self.driver.persisted.setdefault(self.request.session, {}).update(self.served.persisted)

    def fail(self) -> None:
        self.driver.loaded.memory.end_request(self.request_id, keep=False)


def drive(options: Mapping[str, Any], checkpoint: Path | str, dtype: str = "float32") -> WalkDriver:
    model = declare("tiny", str(checkpoint), options)
    return WalkDriver(load_model(model, WorkerConfig(rank=0, dtype=dtype, kv_memory_mb=64)))


@pytest.fixture
def driver(tiny_options: dict[str, str], tiny_checkpoint: Path) -> WalkDriver:
    return drive(tiny_options, tiny_checkpoint)


@pytest.fixture(scope="session")
def make_request() -> type[Request]:
    return Request


@pytest.fixture(scope="session")
def make_driver() -> Any:
    return drive
