"""A model as a worker holds it: programs of its walks, engines of its nodes here, pools of the caches they use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.config import WorkerConfig
from mstar_rt.engine import Engine, build_engine
from mstar_rt.errors import ConfigError, GraphError, nearest
from mstar_rt.graph import GraphNode
from mstar_rt.model import KVSpec, NodeResources, ServedModel
from mstar_rt.nn.attention import AttentionBackend, select_backend
from mstar_rt.program import Program, compile_walk, cut, ranks_of
from mstar_rt.registry import load_object
from mstar_rt.worker.checks import OutputChecks
from mstar_rt.worker.memory import RequestMemory
from mstar_rt.worker.walk_inputs import AbsentInputs

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Part:
    """What one rank runs of a walk. `ranks` are all that take part, `loops_around[i]` names the loops around node i and
    `unsure_depths[i]` says which of them a request may leave early, `caches` are those of the nodes that run here."""

    program: Program
    ranks: tuple[int, ...]
    loops_around: tuple[tuple[str, ...], ...]
    unsure_depths: tuple[tuple[int, ...], ...]
    caches: tuple[str, ...]


@dataclass(frozen=True)
class LoadedModel:
    """Everything a worker needs to run its parts of the walks of one model."""

    model: ServedModel
    programs: Mapping[str, Program]
    engines: Mapping[str, Engine]
    pools: Mapping[str, KVPool]
    compiled: tuple[str, ...] = ()
    """Nodes that run through torch.compile."""
    _parts: dict[tuple[str, tuple[int, ...], int], Part] = field(default_factory=dict)

    @cached_property
    def memory(self) -> RequestMemory:
        """Who holds which sequences of the pools."""
        return RequestMemory({name: self.model.caches[name] for name in self.pools}, self.pools)

    @cached_property
    def checks(self) -> OutputChecks:
        return OutputChecks(self.model)

    @cached_property
    def absent(self) -> AbsentInputs:
        return AbsentInputs(self.model)

    def part(self, walk: str, node_ranks: Sequence[int], rank: int) -> Part:
        """The part of `walk` that `rank` runs when program node i is on node_ranks[i]; remembered."""
        key = (walk, tuple(node_ranks), rank)
        part = self._parts.get(key)
        if part is None:
            program = cut(self.programs[walk], node_ranks, rank)
            loops = tuple(tuple(program.loops[i].name for i in node.loops) for node in program.nodes)
            unsure = tuple(
                tuple(depth for depth, i in enumerate(node.loops) if program.loops[i].dynamic) for node in program.nodes
            )
            here = [node.node.cache for node in program.nodes if node_ranks[node.index] == rank]
            caches = tuple(dict.fromkeys(cache for cache in here if cache is not None))
            part = self._parts[key] = Part(program, ranks_of(node_ranks), loops, unsure, caches)
        return part

    def new_sequences(self) -> dict[str, SequenceStore]:
        return {name: SequenceStore(pool) for name, pool in self.pools.items()}


def load_model(model: ServedModel, worker: WorkerConfig, nodes: Collection[str] | None = None) -> LoadedModel:
    """Compile the walks, allocate the caches, load the weights; of `nodes` only, if that is given.

    Raises:
        CheckpointError, ConfigError, GraphError: with the sentence that says what to change.
    """
    if worker.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"workers: rank {worker.rank} has device {worker.device!r}, but torch finds no CUDA device here; use "
            "'cpu', or install torch with CUDA and check the driver"
        )
    here = [node for node in model.graph.nodes if nodes is None or node.name in nodes]
    dtype = TORCH_DTYPES[worker.dtype]
    pools = {
        name: KVPool(spec, _num_pages(name, spec, worker, dtype), worker.device, dtype)
        for name, spec in model.caches.items()
        if nodes is None or any(node.cache == name for node in here)
    }
    backends: dict[str, AttentionBackend] = {name: select_backend(worker.device, pool) for name, pool in pools.items()}
    resources = NodeResources(
        device=worker.device,
        dtype=worker.dtype,
        max_batch=worker.max_batch,
        nodes=frozenset(node.name for node in here),
        compile=worker.compile,
    )
    code_by_name = load_object(model.nodes_factory)(model, resources)
    if not isinstance(code_by_name, Mapping):
        found = f"gives a {type(code_by_name).__name__}, expected a dict of nodes by their names"
        raise GraphError(f"model {model.name!r}: {model.nodes_factory} {found}")
    engines = {node.name: _engine(model, node, code_by_name, pools, backends) for node in here}
    programs = {walk.name: compile_walk(model.graph, walk.name) for walk in model.graph.walks}
    compiled = tuple(node.name for node in here if getattr(code_by_name[node.name], "is_compiled", False))
    return LoadedModel(model, programs, engines, pools, compiled)


def _engine(
    model: ServedModel,
    node: GraphNode,
    code_by_name: Mapping[str, object],
    pools: Mapping[str, KVPool],
    backends: Mapping[str, AttentionBackend],
) -> Engine:
    if node.name not in code_by_name:
        raise GraphError(f"model {model.name!r}: no code for node {node.name!r}, {nearest(node.name, code_by_name)}")
    if node.cache is not None and node.cache not in pools:
        raise GraphError(f"node {node.name!r} uses cache {node.cache!r}, {nearest(node.cache, pools)}")
    cache = node.cache or ""
    return build_engine(node, code_by_name[node.name], pools.get(cache), backends.get(cache))  # type: ignore[arg-type]


def _num_pages(name: str, spec: KVSpec, worker: WorkerConfig, dtype: torch.dtype) -> int:
    page_bytes = spec.page_bytes(torch.tensor([], dtype=dtype).element_size())
    num_pages = worker.kv_memory_mb * 2**20 // page_bytes
    needed = -(-spec.max_sequence_tokens // spec.page_size)
    if num_pages < needed:
        raise ConfigError(
            f"workers.kv_memory_mb is {worker.kv_memory_mb}: cache {name!r} needs at least "
            f"{-(-needed * page_bytes // 2**20)} MB for one sequence of {spec.max_sequence_tokens} tokens"
        )
    return num_pages
