"""The figures that are shown, out of one snapshot, or of two for rates: plain records, which `--json` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar_rt.client import Histogram
from mstar_rt.client import SessionInfo as SessionFigures
from mstar_rt.histogram import quantile
from mstar_rt.top.snapshot import Snapshot

CLASSES = ("control", "planning", "generation")


@dataclass(frozen=True)
class RankFigures:
    """`answers` False: it is silent, and nothing else is known. `utilisation` is of the last ten seconds, `pages_used`
    of the fullest cache, None without one; what is per second is None without an earlier snapshot."""

    rank: int
    answers: bool
    utilisation: float = 0.0
    steps_per_s: float | None = None
    mean_batch: float | None = None
    ready: Mapping[str, float] = field(default_factory=dict)
    oldest_ready_ms: Mapping[str, float] = field(default_factory=dict)
    misses: Mapping[str, float] = field(default_factory=dict)
    num_dropped: float = 0.0
    num_over_bound: float = 0.0
    pages_used: float | None = None


@dataclass(frozen=True)
class NodeFigures:
    """Of one node on all ranks, over the time between two snapshots, or since the start. `busy` is the share of one
    rank's time."""

    model: str
    node: str
    num_steps: float
    steps_per_s: float | None
    mean_batch: float
    p50_ms: float
    p99_ms: float
    busy: float | None


@dataclass(frozen=True)
class Figures:
    address: str
    version: str
    uptime_s: float
    draining: bool
    not_serving: Mapping[str, str]
    requests_running: float
    requests_per_s: Mapping[str, float]
    requests_ended: Mapping[str, float]
    ticks_missed: float
    admitted_utilisation: Mapping[str, float]
    sessions: tuple[SessionFigures, ...]
    ranks: tuple[RankFigures, ...]
    nodes: tuple[NodeFigures, ...]
    silent: tuple[str, ...]


def figures(now: Snapshot, before: Snapshot | None = None) -> Figures:
    """`before` is an earlier snapshot of the same server."""
    elapsed_s = None if before is None else (now.at_ns - before.at_ns) / 1e9
    server, conductor = _values(now, "server"), _values(now, "conductor")
    ended = _by_label(server, "requests_ended", 0)
    ended_before = {} if before is None else _by_label(_values(before, "server"), "requests_ended", 0)
    return Figures(
        address=now.address,
        version=now.server.version,
        uptime_s=now.server.uptime_s,
        draining=now.server.draining,
        not_serving={model.name: model.reason for model in now.models if not model.serving},
        requests_running=server.get("requests_running", 0.0),
        requests_per_s={
            kind: (count - ended_before.get(kind, 0.0)) / elapsed_s for kind, count in ended.items() if elapsed_s
        },
        requests_ended=_by_label(server, "requests_ended", 1),
        ticks_missed=sum(_by_label(server, "ticks_missed", 0).values()),
        admitted_utilisation=_by_label(conductor, "admitted_utilisation", 0),
        sessions=tuple(now.sessions),
        ranks=tuple(_rank(process, now, before, elapsed_s) for process in _workers(now)),
        nodes=tuple(_nodes(now, before, elapsed_s)),
        silent=now.stats.silent,
    )


def _workers(snapshot: Snapshot) -> list[str]:
    named = [*snapshot.stats.processes, *snapshot.stats.silent]
    return sorted((name for name in named if name.startswith("worker/")), key=_rank_of)


def _rank_of(process: str) -> int:
    return int(process.partition("/")[2])


def _values(snapshot: Snapshot | None, process: str) -> Mapping[str, float]:
    return {} if snapshot is None else snapshot.stats.processes.get(process, {})


def _by_label(values: Mapping[str, float], base: str, position: int) -> dict[str, float]:
    """Sums of "base/label/..." by the label at that position."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in values.items():
        first, *labels = name.split("/")
        if first == base and len(labels) > position:
            sums[labels[position]] += value
    return dict(sums)


def _rank(process: str, now: Snapshot, before: Snapshot | None, elapsed_s: float | None) -> RankFigures:
    values, earlier = _values(now, process), _values(before, process)
    if not values:
        return RankFigures(_rank_of(process), answers=False)
    num_steps = values.get("steps_total", 0.0) - earlier.get("steps_total", 0.0)
    num_units = values.get("units_total", 0.0) - earlier.get("units_total", 0.0)
    if num_steps < 0 or not earlier:  # it was started again meanwhile
        elapsed_s, num_steps, num_units = None, values.get("steps_total", 0.0), values.get("units_total", 0.0)
    oldest = _by_label(values, "oldest_ready_us", 0)
    return RankFigures(
        rank=_rank_of(process),
        answers=True,
        utilisation=values.get("utilisation", 0.0),
        steps_per_s=num_steps / elapsed_s if elapsed_s else None,
        mean_batch=num_units / num_steps if num_steps else None,
        ready=_by_label(values, "ready_units", 0),
        oldest_ready_ms={kind: us / 1e3 for kind, us in oldest.items()},
        misses=_by_label(values, "misses", 0),
        num_dropped=sum(_by_label(values, "drops", 0).values()),
        num_over_bound=sum(_by_label(values, "over_bound", 0).values()),
        pages_used=_pages_used(values),
    )


def _pages_used(values: Mapping[str, float]) -> float | None:
    """Share of the pages that are held, of the cache where it is the largest."""
    shares = []
    for name, held in values.items():
        if name.startswith("pages_held/"):
            num_pages = held + values.get("pages_free/" + name.removeprefix("pages_held/"), 0.0)
            shares.append(held / num_pages if num_pages else 0.0)
    return max(shares, default=None)


def _nodes(now: Snapshot, before: Snapshot | None, elapsed_s: float | None) -> list[NodeFigures]:
    """The busiest first; those that did nothing are left out."""
    run_us, batch_size = _summed(now, before, "run_us"), _summed(now, before, "batch_size")
    found = []
    for (model, node), histogram in run_us.items():
        num_steps = histogram.num_values
        p50, p99 = (quantile(histogram.bounds, histogram.counts, q) for q in (0.5, 0.99))
        if not num_steps or p50 is None or p99 is None:
            continue
        units = batch_size.get((model, node))
        found.append(
            NodeFigures(
                model=model,
                node=node,
                num_steps=num_steps,
                steps_per_s=num_steps / elapsed_s if elapsed_s else None,
                mean_batch=units.total / num_steps if units is not None else 1.0,
                p50_ms=p50 / 1e3,
                p99_ms=p99 / 1e3,
                busy=histogram.total / 1e6 / elapsed_s if elapsed_s else None,
            )
        )
    return sorted(found, key=lambda each: -each.p50_ms * each.num_steps)


def _summed(now: Snapshot, before: Snapshot | None, base: str) -> dict[tuple[str, str], Histogram]:
    """By model and node over all ranks; of what came since `before`."""
    sums: dict[tuple[str, str], Histogram] = {}
    for process, histograms in now.stats.histograms.items():
        for name, histogram in histograms.items():
            first, _, where = name.partition("/")
            model, _, node = where.partition("/")
            if first != base:
                continue
            earlier = None if before is None else before.stats.histograms.get(process, {}).get(name)
            since = _since(histogram, earlier)
            known = sums.get((model, node))
            sums[model, node] = since if known is None else _added(known, since, 1)
    return sums


def _since(histogram: Histogram, earlier: Histogram | None) -> Histogram:
    """A process that was started again counts from 0."""
    if earlier is None or earlier.num_values > histogram.num_values:
        return histogram
    return _added(histogram, earlier, -1)


def _added(one: Histogram, other: Histogram, sign: int) -> Histogram:
    counts = tuple(a + sign * b for a, b in zip(one.counts, other.counts, strict=True))
    return Histogram(one.bounds, counts, one.total + sign * other.total)
