"""What `mstar-rt check` prints: who runs where, and what crosses between ranks."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar_rt.config import DeploymentConfig, WorkerConfig
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition
from mstar_rt.model import PolicySpec, ServedModel, VectorSpec
from mstar_rt.placement import Placement, Ranks
from mstar_rt.placement.traffic import Transfer, scope_transfers, walk_transfers
from mstar_rt.process_settings import check_permitted
from mstar_rt.server.compat.described import described
from mstar_rt.server.compat.mapping import Mapping as DialectMapping


def report(config: DeploymentConfig, models: Mapping[str, ServedModel], placement: Placement) -> Iterator[str]:
    """Lines for people; those that begin with "warning:" are about what works but is hardly meant."""
    for worker in config.workers:
        yield f"rank {worker.rank}: {worker.device}, {worker.dtype}, {worker.threads} thread(s)"
        yield from _worker(worker)
        yield from _process(worker.process)
        for name in placement.models_on(worker.rank):
            nodes = ", ".join(_nodes_on(placement, name, worker.rank))
            yield f"  {name} ({models[name].family}): {nodes}"
    for worker in config.workers:
        if not placement.models_on(worker.rank):
            yield f"warning: rank {worker.rank} runs no node; place nodes there or take the worker out of the file"
    about_server = [*_server(config), *_process(config.server.process)]
    if about_server:
        yield from ("server:", *about_server)
    if changed := _changed(config.admission):
        yield f"admission: {changed}"
    yield from _starved_server(config)
    for name, model in models.items():
        if model.policy is not None:
            yield from _policy(name, model.policy)
    for dialect in config.dialects:
        yield from described(DialectMapping(dialect, models[dialect.model]))
    for name in models:
        if len(placement.ranks_of(name)) > 1:
            yield from _crossings(placement, name, [task.walks for task in models[name].tasks])


SHOWN_OF_WORKER = ("rank", "device", "dtype", "threads", "process", "compile")
SHOWN_OF_SERVER = ("host", "port", "process", "http_port", "metrics_port", "trace_dir", "otlp_endpoint")
"""Keys that have words of their own."""


def _worker(worker: WorkerConfig) -> Iterator[str]:
    if worker.compile:
        yield "  compiles what can be, which takes half a minute or more at each start"
    if changed := _changed(worker, SHOWN_OF_WORKER):
        yield f"  {changed}"


def _server(config: DeploymentConfig) -> Iterator[str]:
    """Who may look at it, and what else is not as usual."""
    server = config.server
    for what, port in (("OpenAI's API", server.http_port), ("metrics", server.metrics_port)):
        if port is not None:
            yield f"  {what} on {f'port {port}' if port else 'a free port'} of {server.host}"
    if server.trace_dir:
        folder = config.resolve(server.trace_dir)
        yield f"  traces of missed ticks go to {folder}" + ("" if Path(folder).exists() else ", which will be made")
    if server.otlp_endpoint:
        yield f"  spans go to {server.otlp_endpoint}"
    if changed := _changed(server, SHOWN_OF_SERVER):
        yield f"  {changed}"


def _changed(config: Any, left_out: Sequence[str] = ()) -> str:
    """The keys of a part of the file that are not as they are when they are not given."""
    usual = type(config)(**{"rank": config.rank} if isinstance(config, WorkerConfig) else {})
    names = [key.name for key in dataclasses.fields(config) if key.name not in left_out]
    changed = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}
    return ", ".join(f"{name} {_written(value)}" for name, value in changed.items())


def _written(value: Any) -> str:
    """As in the file."""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _process(process: ProcessConfig) -> Iterator[str]:
    """What it asks of the kernel, if anything, and whether it would get it here."""
    asks = [
        f"cores {_numbers(process.cpus)}" if process.cpus else "",
        f"real time, priority {process.realtime_priority}" if process.realtime_priority else "",
    ]
    if any(asks):
        yield f"  process: {', '.join(filter(None, asks))}"
    yield from _warning(lambda: check_permitted(process))


def _warning(check: Callable[[], None]) -> Iterator[str]:
    try:
        check()
    except FailedPrecondition as error:
        yield f"warning: {error}"


def _starved_server(config: DeploymentConfig) -> Iterator[str]:
    """Workers in real time that can be busy on all of the server's cores at once, and that it cannot overtake."""
    server = config.server.process
    cores = set(server.cpus or range(os.cpu_count() or 1))
    rivals = [
        worker
        for worker in config.workers
        if worker.process.realtime_priority > 0
        and worker.process.realtime_priority >= server.realtime_priority
        and cores & set(worker.process.cpus or cores)
    ]
    num_taken = sum(min(worker.threads, len(worker.process.cpus) or worker.threads) for worker in rivals)
    if num_taken >= len(cores):
        ranks = _numbers([worker.rank for worker in rivals])
        yield (
            f"warning: ranks {ranks}, in real time, can keep the server from all its {len(cores)} core(s); set a "
            "higher server.process.realtime_priority, or give it a core of its own"
        )


def _policy(name: str, policy: PolicySpec) -> Iterator[str]:
    """What a robot has to bring, and what it gets."""
    yield f"policy {name}:"
    cameras = [
        f"{each.name} {each.height} x {each.width}" + (" (may be masked)" if each.may_be_masked else "")
        for each in policy.cameras
    ]
    yield f"  cameras: {', '.join(cameras) or 'none'}"
    yield f"  state: {'none' if policy.state is None else _vector(policy.state)}"
    yield f"  action: {_vector(policy.action)}, {policy.action_horizon} in a chunk"
    takes = ["an instruction"] if policy.takes_instruction else []
    if policy.num_observations > 1:
        takes.append(f"the last {policy.num_observations} observations")
    if len(policy.normalizations) > 1:
        takes.append(f"normalization {' or '.join(policy.normalizations)}")
    yield f"  takes: {', '.join(takes) or 'nothing else'}"
    modes = [f"{mode} (delay to {policy.max_prefix_delay})" if mode == "prefix" else mode for mode in policy.chunking]
    yield f"  chunking: {', '.join(modes) or 'none of its own'}"
    if policy.anytime_task is not None:
        yield "  anytime: fewer denoise steps where a session's budget_ms asks for it"


def _vector(vector: VectorSpec) -> str:
    """The size, and what is known of the dimensions."""
    units = vector.units or ("",) * vector.size
    known = [f"{name} {unit}".strip() for name, unit in zip(vector.names or units, units, strict=True)]
    dimensions = ", ".join(filter(None, known if vector.names else units))
    return f"{vector.size} ({dimensions})" if dimensions else str(vector.size)


def _nodes_on(placement: Placement, model: str, rank: int) -> Iterator[str]:
    """Node names; where a rank runs some uses of a node only, with these as walk or walk.alias."""
    for name in placement.nodes_on(model, rank):
        here: list[str] = []
        elsewhere = False
        for walk in placement.walks(model):
            ranks = placement.use_ranks(model, walk)
            for use in placement.program(model, walk).nodes:
                if use.node.name != name:
                    continue
                if rank in ranks[use.index]:
                    here.append(walk if use.name == name else f"{walk}.{use.name}")
                else:
                    elsewhere = True
        yield f"{name} ({', '.join(here)})" if elsewhere else name


def _crossings(placement: Placement, model: str, tasks: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"model {model}:"
    for group in placement.groups(model):
        uses = ", ".join(f"{walk}.{use}" for walk, use in group.uses)
        kept = "a session keeps its replica" if group.sticky else "any for each request"
        yield f"  replicas on ranks {_numbers(group.ranks)} ({kept}): {uses}"
    for walk in placement.walks(model):
        ranks = placement.use_ranks(model, walk)
        involved = sorted({rank for options in ranks for rank in options})
        yield f"  walk {walk}: {'rank' if len(involved) == 1 else 'ranks'} {_numbers(involved)}"
        yield from _table(walk_transfers(placement, model, walk))
    between = scope_transfers(placement, model, tasks)
    if between:
        yield "  between walks:"
        yield from _table(between)


def _table(transfers: Sequence[Transfer]) -> Iterator[str]:
    rows = [(t.what, f"{_place(t.from_ranks)} -> {_place(t.to_ranks)}", t.when) for t in transfers]
    widths = [max(len(row[column]) for row in rows) for column in range(2)] if rows else []
    for what, ranks, when in rows:
        yield f"    {what:<{widths[0]}}  {ranks:<{widths[1]}}  {when}"


def _place(ranks: Ranks) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"one of {_numbers(ranks)}"


def _numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
