"""The life of a worker process: load, say so, serve."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time

import torch

from mstar_rt import process_settings
from mstar_rt.clock import MonotonicClock
from mstar_rt.config import DeploymentConfig, WorkerConfig, config_from_plain, log_level
from mstar_rt.errors import ConfigError, MstarError
from mstar_rt.lifetime import START_FAILED
from mstar_rt.message import WorkerReady
from mstar_rt.model.declare import declare_model
from mstar_rt.placement import PlacedModel, place
from mstar_rt.transport import RELEASE_DELAY_S, ZmqMesh, shared_memory_plane
from mstar_rt.worker.heartbeat import HeartbeatThread
from mstar_rt.worker.loaded import LoadedModel, load_model
from mstar_rt.worker.worker import Worker


def run(args: argparse.Namespace) -> int:
    """Load the models that `args` names and serve until told to stop; returns the exit status."""
    logging.basicConfig(level=log_level(), format=f"%(asctime)s worker/{args.rank} %(levelname)s %(message)s")
    config = config_from_plain(json.load(sys.stdin))
    worker_config = next(worker for worker in config.workers if worker.rank == args.rank)
    torch.set_num_threads(worker_config.threads)
    started_s = time.monotonic()
    try:
        process_settings.pin(worker_config.process)  # before memory is touched: it lies next to the core that did it
        process_settings.check_permitted(worker_config.process)
        models = load_models(config, worker_config, args.models.split(","))
    except MstarError as error:
        print(error, flush=True)
        return START_FAILED
    except Exception as error:
        # Whatever it is, starting again would meet it again.
        logging.getLogger(__name__).error("worker %d cannot start", args.rank, exc_info=error)
        print(f"worker {args.rank} cannot start: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return START_FAILED
    _serve(args, worker_config, models, started_s)
    return 0


def load_models(config: DeploymentConfig, worker: WorkerConfig, names: list[str]) -> dict[str, LoadedModel]:
    """The nodes of each model that are placed on this worker's rank.

    Raises: MstarError: a model cannot be declared, placed or loaded.
    """
    declared = {model.name: declare_model(config, model) for model in config.models}
    placed = {name: PlacedModel(model.graph, model.cache_lifetimes) for name, model in declared.items()}
    placement = place(placed, config.placement, [other.rank for other in config.workers])
    if worker.compile:
        _say(f"rank {worker.rank} compiles before it serves, which takes half a minute or more")
    started_s = time.monotonic()
    models = {
        name: load_model(model, worker, placement.nodes_on(name, worker.rank))
        for name, model in declared.items()
        if name in names
    }
    compiled = [f"{name}.{node}" for name, model in models.items() for node in model.compiled]
    if worker.compile and not compiled:
        raise ConfigError(
            f"workers: rank {worker.rank} has compile: true, but no node of {', '.join(map(repr, names))} there can be "
            "compiled: take it out"
        )
    if compiled:
        took_s = time.monotonic() - started_s
        _say(f"rank {worker.rank} has loaded its models and compiled {', '.join(compiled)} in {took_s:.0f} s")
    return models


def _say(sentence: str) -> None:
    """To whoever waits for the server, whatever is logged."""
    print(f"mstar-rt: {sentence}", file=sys.stderr, flush=True)


def _serve(
    args: argparse.Namespace, worker_config: WorkerConfig, models: dict[str, LoadedModel], started_s: float
) -> None:
    mesh = ZmqMesh.join(args.deployment)
    endpoint = mesh.endpoint(f"worker/{args.rank}")
    plane = shared_memory_plane(endpoint, mesh.deployment_id, worker_config.shared_memory_mb * 2**20, RELEASE_DELAY_S)
    heartbeat = HeartbeatThread(endpoint, args.rank)
    worker = Worker(
        models,
        endpoint,
        plane,
        MonotonicClock(),
        worker_config.device,
        worker_config.max_batch,
        worker_config.check_outputs,
        heartbeat,
        worker_config.scheduling,
        worker_config.lower_class_share,
        worker_config.max_step_ms,
        time.thread_time_ns if worker_config.device == "cpu" else None,
    )
    # What was loaded lives as long as the process: keep the collector from walking it in the middle of a tick.
    gc.collect()
    gc.freeze()
    process_settings.apply(worker_config.process)
    load_ms = (time.monotonic() - started_s) * 1e3
    endpoint.send("conductor", WorkerReady(args.rank, os.getpid(), sorted(models), load_ms))
    heartbeat.start()
    try:
        worker.run()
    finally:
        heartbeat.stop()
        plane.close()
        mesh.close()
