"""Starts and stops the processes of a deployment: server and conductor here, one worker process per rank."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mstar_rt import process_settings
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.conductor import Conductor
from mstar_rt.config import DeploymentConfig
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition, Internal, MstarError
from mstar_rt.freed_memory import keep_freed_memory
from mstar_rt.message import Shutdown
from mstar_rt.model import ServedModel
from mstar_rt.model.declare import declare_model
from mstar_rt.node_places import node_places
from mstar_rt.placement import PlacedModel, Placement, place
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.edge import Edge, EdgeConfig, start_edge
from mstar_rt.server.tensor_port import Readers
from mstar_rt.server.tls import TlsFiles
from mstar_rt.server.warmup import WarmUps
from mstar_rt.server.watching import WatchConfig, watched
from mstar_rt.supervision import Process, Supervisor, out_of_time, start_worker
from mstar_rt.transport import RELEASE_DELAY_S, ControlEndpoint, ZmqMesh, shared_memory_plane

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 5.0
STREAM_GRACE_S = 1.0
"""How long calls that have their last word may take to send it."""

CHECK_EVERY_S = 0.5
KEPT_MEGABYTES = 256
"""Of what the server's messages took, for the next ones."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def declare_models(config: DeploymentConfig) -> dict[str, ServedModel]:
    """The declarations of all models, without their weights."""
    return {model.name: declare_model(config, model) for model in config.models}


def place_models(config: DeploymentConfig, models: Mapping[str, ServedModel]) -> Placement:
    placed = {name: PlacedModel(model.graph, model.cache_lifetimes) for name, model in models.items()}
    dtypes = dtypes_of(config)
    return place(placed, config.placement, list(dtypes), dtypes)


def dtypes_of(config: DeploymentConfig) -> dict[int, str]:
    """By rank."""
    return {worker.rank: worker.dtype for worker in config.workers}


def input_readers(models: Mapping[str, ServedModel], placement: Placement) -> Callable[[str, str], Readers]:
    """By model and task: the workers that may read each input."""

    @functools.cache
    def readers(model: str, task: str) -> Readers:
        ranks_of = placement.readers(model, models[model].task(task).walks)
        return {name: tuple(f"worker/{rank}" for rank in ranks) for name, ranks in ranks_of.items()}

    return readers


@dataclass
class Deployment:
    """A running deployment; made by `running_deployment`.

    `metrics_address` is "" if no metrics are served. `has_served`: every model has, at the same time. `failure` is set
    with what must end it; `at_once` tells whoever drains or stops it not to wait any more.
    """

    config: DeploymentConfig
    models: Mapping[str, ServedModel]
    placement: Placement
    clock: Clock
    conductor: Conductor
    dispatcher: Dispatcher
    endpoint: ControlEndpoint
    directory: Path
    edge: Edge = field(init=False)
    metrics_address: str = ""
    has_served: bool = False
    supervisors: dict[int, Supervisor] = field(default_factory=dict)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)
    failure: asyncio.Future[MstarError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self.warm_ups = WarmUps(self.models, self.dispatcher, self.fail)
        self.dispatcher.availability.starts_in_s = self.starts_in_s

    @property
    def address(self) -> str:
        """host:port of the gRPC server."""
        return self.edge.address

    @property
    def workers(self) -> dict[int, Process]:
        """By rank, those that live."""
        return {rank: s.process for rank, s in self.supervisors.items() if s.process is not None}

    async def wait_until_serving(self) -> None:
        """Return once every model serves.

        Raises:
            MstarError: a worker cannot start, a task of a model does not run, or `warmup_timeout_s` is over.
        """
        serving = asyncio.ensure_future(self.dispatcher.wait_until_serving())
        await _first_of(serving, self.failure, timeout_s=self.config.warmup_timeout_s)
        serving.cancel()
        if self.failure.done():
            raise self.failure.result()
        self.has_served = self.has_served or serving.done()
        if not serving.done():
            raise out_of_time(self.config.warmup_timeout_s, self.supervisors.values(), self.conductor)

    def fail(self, error: MstarError) -> None:
        """The deployment has to end."""
        if not self.failure.done():
            self.failure.set_result(error)

    def keep_running(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """If `work` raises, that is a bug of ours: nothing goes on."""
        task = asyncio.create_task(work)
        task.add_done_callback(functools.partial(self._ended, what))
        return task

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("the %s failed", what, exc_info=error)
        sentence = f"the {what} failed ({type(error).__name__}), the server's log has the cause: restart the deployment"
        self.dispatcher.fail_all(Internal(sentence))
        self.fail(Internal(sentence))

    # --- workers -----------------------------------------------------------------------------------------------------

    def supervise_workers(self) -> list[asyncio.Task[None]]:
        for worker in self.config.workers:
            if names := self.placement.models_on(worker.rank):
                start = functools.partial(start_worker, self.config, worker, self.directory, names)
                self.supervisors[worker.rank] = Supervisor(
                    worker.rank,
                    start,
                    self.conductor,
                    self.clock,
                    self.config.warmup_timeout_s,
                    self.fail,
                    is_starting=lambda: not self.has_served,
                    compiles=worker.compile,
                )
        supervising = [self.keep_running(f"supervisor of rank {s.rank}", s.run()) for s in self.supervisors.values()]
        return [*supervising, self.keep_running("watch over the workers", self._watch_workers())]

    def starts_in_s(self, model: str) -> float:
        """How long until every node of the model has a rank again whose worker was at least started."""
        if not self.supervisors:
            return 0.0
        places = self.placement.places(model)
        return max(min(self.supervisors[rank].starts_in_s() for rank in place) for place in places)

    async def _watch_workers(self) -> None:
        """Kill workers that hang, for ever."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for rank, reason in self.conductor.overdue(self.clock.now_ns()):
                self.supervisors[rank].kill(reason)
            for supervisor in self.supervisors.values():
                supervisor.check_loading()

    # --- ends --------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Refuse new work, let what runs finish for up to `drain_timeout_s` or until `at_once`, end the rest."""
        timeout_s = self.config.server.drain_timeout_s
        num_running = await self.dispatcher.drain()
        await self.warm_ups.stop()
        if num_running:
            print(f"mstar-rt lets {num_running} request(s) finish, for up to {timeout_s:g} s", flush=True)
        await self._unless_at_once(self.dispatcher.wait_until_answered(), timeout_s)
        self.dispatcher.close()

    async def stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """End all calls, ask the workers to stop, then make sure. `tasks` are what `supervise_workers` gave.

        Those that load read no messages, maybe for minutes, and hold nothing: they are killed.
        """
        await self.warm_ups.stop()
        await self.edge.stop(0.0 if self.at_once.is_set() else STREAM_GRACE_S)
        for supervisor in self.supervisors.values():
            supervisor.stopping = True
        for rank, worker in self.workers.items():
            if self.conductor.is_ready(rank):
                self.endpoint.send(f"worker/{rank}", Shutdown())
            else:
                worker.kill()
        await self._unless_at_once(self._workers_end(), STOP_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=KILL_TIMEOUT_S)

    async def _workers_end(self) -> None:
        await asyncio.gather(*(worker.ended() for worker in self.workers.values()))

    async def _unless_at_once(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        waits = [asyncio.ensure_future(work), asyncio.ensure_future(self.at_once.wait())]
        await _first_of(*waits, self.failure, timeout_s=timeout_s)
        for wait in waits:
            wait.cancel()


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
        endpoint = mesh.endpoint("server")
        conductor = Conductor(models, placement, mesh.endpoint("conductor"), clock, config.workers, config.admission)
        memory_bytes = sum(worker.shared_memory_mb for worker in config.workers) * 2**20
        plane = shared_memory_plane(endpoint, mesh.deployment_id, memory_bytes, RELEASE_DELAY_S)
        dispatcher = Dispatcher(
            endpoint,
            plane,
            {name: tuple(f"worker/{rank}" for rank in placement.ranks_of(name)) for name in models},
            input_readers(models, placement),
            max_unread_bytes=config.server.max_unread_mb * 2**20,
        )
        deployment = Deployment(config, models, placement, clock, conductor, dispatcher, endpoint, mesh.directory)
        tasks = [
            deployment.keep_running("conductor", conductor.run()),
            deployment.keep_running("dispatcher", dispatcher.run()),
        ]
        try:
            async with watched(watch_config(config), dispatcher, clock) as deployment.metrics_address:
                places = {name: node_places(placement, name, dtypes_of(config)) for name in models}
                deployment.edge = await start_edge(edge_config(config), models, dispatcher, places=places)
                deployment.edge.dialects.on_failed = deployment.fail
                supervising = deployment.supervise_workers()
                try:
                    yield deployment
                finally:
                    await deployment.stop(supervising)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            plane.close()
    finally:
        mesh.close()


async def serve(config: DeploymentConfig) -> None:
    """Serve until SIGINT or SIGTERM, which drain; a second one stops at once.

    Raises:
        MstarError: it cannot start, or cannot go on.
    """
    config = _permitted(config)
    keep_freed_memory(KEPT_MEGABYTES)
    asked, at_once = asyncio.Event(), asyncio.Event()

    def ask() -> None:
        (at_once if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for signal_number in STOP_SIGNALS:
        loop.add_signal_handler(signal_number, ask)
    async with running_deployment(config) as deployment:
        deployment.at_once = at_once
        deployment.edge.dialects.on_kill = asked.set
        ready = asyncio.ensure_future(deployment.wait_until_serving())
        stopping = asyncio.ensure_future(asked.wait())
        await _first_of(ready, stopping)
        if not asked.is_set():
            ready.result()
            # What was loaded lives as long as the process: keep the collector from walking it during a request.
            gc.collect()
            gc.freeze()
            process_settings.apply(config.server.process, spare_children=True)
            print(f"mstar-rt serves {', '.join(deployment.models)} on {deployment.address}", flush=True)
            for listener in deployment.edge.listeners:
                print(f"mstar-rt serves {listener.name}", flush=True)
            if deployment.metrics_address:
                print(f"mstar-rt shows its metrics on {deployment.metrics_address}", flush=True)
            await _first_of(stopping, deployment.failure)
        ready.cancel()
        stopping.cancel()
        if asked.is_set():
            await deployment.drain()
        if deployment.failure.done():
            raise deployment.failure.result()


def _permitted(config: DeploymentConfig) -> DeploymentConfig:
    """The same, with what workers have to ask of the kernel lest they inherit the server's settings.

    Raises:  FailedPrecondition: the kernel refuses what the file asks for.
    """
    _check_permitted(config.server.process, "server.process")
    workers = []
    for worker in config.workers:
        _check_permitted(worker.process, f"process of rank {worker.rank}")
        process = process_settings.inherited(worker.process, config.server.process)
        workers.append(dataclasses.replace(worker, process=process))
    return dataclasses.replace(config, workers=tuple(workers))


def _check_permitted(process: ProcessConfig, whose: str) -> None:
    try:
        process_settings.check_permitted(process)
    except FailedPrecondition as error:
        raise FailedPrecondition(f"{whose}: {error}") from None


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
        tls=tls_files(config),
        tokens_file=config.resolve(server.tokens_file),
        max_messages_per_s=config.admission.max_messages_per_s_per_client,
        dialects=tuple(
            dataclasses.replace(dialect, api_keys_file=config.resolve(dialect.api_keys_file))
            for dialect in config.dialects
        ),
        http_port=server.http_port,
    )


def tls_files(config: DeploymentConfig) -> TlsFiles | None:
    server = config.server
    if not server.tls_cert_file:
        return None
    cert, key, client_ca = map(config.resolve, (server.tls_cert_file, server.tls_key_file, server.tls_client_ca_file))
    return TlsFiles(cert, key, client_ca)


def watch_config(config: DeploymentConfig) -> WatchConfig:
    server = config.server
    return WatchConfig(
        deployment=config.name,
        host=server.host,
        insecure=server.insecure,
        tls=tls_files(config),
        tokens_file=config.resolve(server.tokens_file),
        metrics_port=server.metrics_port,
        trace_dir=config.resolve(server.trace_dir),
        otlp_endpoint=server.otlp_endpoint,
    )
