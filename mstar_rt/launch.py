"""Starts and supervises the processes of a deployment: server and conductor here, one worker process per rank."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.clock import MonotonicClock
from mstar_rt.conductor import Conductor
from mstar_rt.config import DeploymentConfig, WorkerConfig, config_to_plain, worker_environment
from mstar_rt.errors import FailedPrecondition, MstarError, Unavailable
from mstar_rt.lifetime import START_FAILED
from mstar_rt.message import Shutdown
from mstar_rt.model import ServedModel
from mstar_rt.model.declare import declare_model
from mstar_rt.placement import Placement, place
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.edge import Edge, EdgeConfig, start_edge
from mstar_rt.transport import ControlEndpoint, ZmqMesh, shared_memory_plane

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
FIRST_RESTART_DELAY_S = 0.5
LONGEST_RESTART_DELAY_S = 30.0


def declare_models(config: DeploymentConfig) -> dict[str, ServedModel]:
    """The declarations of all models, without their weights."""
    return {model.name: declare_model(config, model) for model in config.models}


def place_models(config: DeploymentConfig, models: Mapping[str, ServedModel]) -> Placement:
    nodes = {name: [node.name for node in model.graph.nodes] for name, model in models.items()}
    return place(nodes, config.placement, [worker.rank for worker in config.workers])


@dataclass
class Deployment:
    """A running deployment; made by `running_deployment`."""

    config: DeploymentConfig
    models: Mapping[str, ServedModel]
    placement: Placement
    mesh: ZmqMesh
    conductor: Conductor
    dispatcher: Dispatcher
    edge: Edge
    endpoint: ControlEndpoint
    workers: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    stopping: bool = False
    failure: asyncio.Future[MstarError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def address(self) -> str:
        """host:port of the gRPC server."""
        return self.edge.address

    async def wait_until_serving(self) -> None:
        """Return once every model serves.

        Raises:
            MstarError: a worker cannot start, or did not within `warmup_timeout_s`.
        """
        serving = asyncio.ensure_future(self.dispatcher.wait_until_serving())
        await _first_of(serving, self.failure, timeout_s=self.config.warmup_timeout_s)
        serving.cancel()
        if self.failure.done():
            raise self.failure.result()
        if not serving.done():
            raise Unavailable(f"the workers were not ready within warmup_timeout_s = {self.config.warmup_timeout_s}")

    async def supervise(self, worker: WorkerConfig) -> None:
        """Keep one worker running: start it, and start it again with a growing delay whenever it ends."""
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            pid, status, error_line = await self._run_worker(worker)
            reason = f"the worker of rank {worker.rank} ended with status {status}"
            if self.stopping:
                return
            self.conductor.worker_lost(worker.rank, reason, pid)
            if status == START_FAILED:
                if not self.failure.done():
                    self.failure.set_result(FailedPrecondition(error_line or reason))
                return
            logger.error("%s; starting it again in %.1f s", reason, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_RESTART_DELAY_S)

    async def _run_worker(self, worker: WorkerConfig) -> tuple[int, int, str]:
        """One life of a worker: its process id, exit status, and its sentence if it could not start."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mstar_rt.worker",
            "--rank", str(worker.rank), "--deployment", str(self.mesh.directory),
            "--models", ",".join(self.placement.models_on(worker.rank)), "--parent", str(os.getpid()),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=worker_environment(worker.threads),
            process_group=0,  # Ctrl-C is for this process, which then asks the workers to stop
        )  # fmt: skip
        self.workers[worker.rank] = process
        try:
            output, _ = await process.communicate(json.dumps(config_to_plain(self.config)).encode())
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self.workers.pop(worker.rank, None)
        assert process.returncode is not None
        return process.pid, process.returncode, output.decode(errors="replace").strip()

    async def stop_workers(self, supervisors: list[asyncio.Task[None]]) -> None:
        """Ask the workers to stop, then make sure."""
        self.stopping = True
        processes = list(self.workers.values())
        for rank in list(self.workers):
            self.endpoint.send(f"worker/{rank}", Shutdown())
        if processes:
            waits = [asyncio.ensure_future(process.wait()) for process in processes]
            await asyncio.wait(waits, timeout=STOP_TIMEOUT_S)
        for supervisor in supervisors:
            supervisor.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)


@contextlib.asynccontextmanager
async def running_deployment(config: DeploymentConfig) -> AsyncIterator[Deployment]:
    """Start everything; the edge listens (NOT_SERVING) before the workers load, so that a port in use fails first.

    Raises:
        ConfigError, GraphError, FailedPrecondition: with the sentence that says what to change.
    """
    models = declare_models(config)
    placement = place_models(config, models)
    clock = MonotonicClock()
    mesh = ZmqMesh.create()
    try:
        server_endpoint = mesh.endpoint("server")
        conductor = Conductor(models, placement, mesh.endpoint("conductor"), clock)
        memory_bytes = sum(worker.shared_memory_mb for worker in config.workers) * 2**20
        plane = shared_memory_plane(server_endpoint, mesh.deployment_id, memory_bytes)
        workers_of = {name: (f"worker/{placement.rank_of(name)}",) for name in models}
        dispatcher = Dispatcher(server_endpoint, plane, workers_of)
        tasks = [asyncio.create_task(conductor.run()), asyncio.create_task(dispatcher.run())]
        try:
            edge = await start_edge(edge_config(config), models, dispatcher)
            deployment = Deployment(config, models, placement, mesh, conductor, dispatcher, edge, server_endpoint)
            supervisors = [asyncio.create_task(deployment.supervise(worker)) for worker in config.workers]
            try:
                yield deployment
            finally:
                await edge.stop(grace_s=1.0)
                await deployment.stop_workers(supervisors)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            plane.close()
    finally:
        mesh.close()


async def serve(config: DeploymentConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    async with running_deployment(config) as deployment:
        ready = asyncio.ensure_future(deployment.wait_until_serving())
        stopping = asyncio.ensure_future(stop.wait())
        await _first_of(ready, stopping)
        if not stop.is_set():
            ready.result()
            print(f"mstar-rt serves {', '.join(deployment.models)} on {deployment.address}", flush=True)
            await _first_of(stopping, deployment.failure)
        ready.cancel()
        stopping.cancel()
        if deployment.failure.done() and not stop.is_set():
            raise deployment.failure.result()


async def _first_of(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of them is done or the time is up; cancels none."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def edge_config(config: DeploymentConfig) -> EdgeConfig:
    server = config.server
    return EdgeConfig(
        host=server.host,
        port=server.port,
        reflection=server.reflection,
        insecure=server.insecure,
        max_message_bytes=server.max_message_mb * 2**20,
    )
