"""A model as a worker holds it: programs of its walks, engines of its nodes, pools of its caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.config import WorkerConfig
from mstar_rt.engine import Engine, build_engine
from mstar_rt.errors import ConfigError, GraphError, nearest
from mstar_rt.model import KVSpec, NodeResources, ServedModel
from mstar_rt.nn.attention import AttentionBackend, select_backend
from mstar_rt.program import Program, compile_walk
from mstar_rt.registry import load_object

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """Everything a worker needs to run the walks of one model."""

    model: ServedModel
    programs: Mapping[str, Program]
    engines: Mapping[str, Engine]
    pools: Mapping[str, KVPool]

    def new_sequences(self) -> dict[str, SequenceStore]:
        return {name: SequenceStore(pool) for name, pool in self.pools.items()}


def load_model(model: ServedModel, worker: WorkerConfig) -> LoadedModel:
    """Compile the walks, allocate the caches, load the weights.

    Raises:
        CheckpointError, ConfigError, GraphError: with the sentence that says what to change.
    """
    dtype = TORCH_DTYPES[worker.dtype]
    pools = {
        name: KVPool(spec, _num_pages(name, spec, worker, dtype), worker.device, dtype)
        for name, spec in model.caches.items()
    }
    backends: dict[str, AttentionBackend] = {name: select_backend(worker.device, pool) for name, pool in pools.items()}
    resources = NodeResources(device=worker.device, dtype=worker.dtype, max_batch=worker.max_batch)
    code_by_name = load_object(model.nodes_factory)(model, resources)
    engines: dict[str, Engine] = {}
    for node in model.graph.nodes:
        if node.name not in code_by_name:
            raise GraphError(
                f"model {model.name!r}: no code for node {node.name!r}, {nearest(node.name, code_by_name)}"
            )
        if node.cache is not None and node.cache not in pools:
            raise GraphError(f"node {node.name!r} uses cache {node.cache!r}, {nearest(node.cache, pools)}")
        cache = node.cache or ""
        engines[node.name] = build_engine(node, code_by_name[node.name], pools.get(cache), backends.get(cache))
    programs = {walk.name: compile_walk(model.graph, walk.name) for walk in model.graph.walks}
    return LoadedModel(model, programs, engines, pools)


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
