"""The statistics of all processes in Prometheus' text format.

Names are mechanical: value "pages_free/tabletop/predictor" of worker/0 is
mstar_worker_pages_free{rank="0",model="tabletop",cache="predictor"}; microseconds become seconds; what only grows is a
counter. So a figure that a process adds to its statistics is here without a word about it, and FAMILIES only says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from mstar_rt.message import Distribution
from mstar_rt.server.control.counters import CHUNKS, EVENTS
from mstar_rt.server.stats import Collected

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Family:
    """How the values of one name are shown; `labels` name the parts after it."""

    doc: str = ""
    labels: tuple[str, ...] = ()
    counter: bool = False


_TASK, _NODE, _CACHE, _CLASS = ("model", "task"), ("model", "node"), ("model", "cache"), ("class",)

FAMILIES = {
    "server": {
        "tick_us": Family("From an observation's arrival to its chunk", ("model",)),
        "ticks_missed": Family("Observations with no chunk before their deadline", ("model", "how"), counter=True),
        "request_us": Family("From a request's arrival to its last answer", _TASK),
        "part_us": Family("Where the time of requests went", ("part", *_TASK)),
        "requests_ended": Family("Requests by how they ended", ("class", "code"), counter=True),
        "requests_submitted": Family("Requests since the start", counter=True),
        "requests_running": Family("Requests that run or wait"),
        "sessions": Family("Sessions that keep state in the runtime"),
        "control_sessions": Family("Robots whose streams are open"),
        "calls_refused": Family("Calls without a good token, messages over a client's rate", ("reason",), counter=True),
        "bytes_held": Family("Shared memory held by inputs that workers have still to read"),
    },
    "conductor": {
        "admitted_utilisation": Family("Share of a rank's time that admitted sessions may take", ("rank",)),
        "queued": Family("Requests that wait to be started", _CLASS),
        "refused": Family("Requests and sessions that were not admitted", ("reason",), counter=True),
        "ranks_serving": Family("Ranks that requests of the model may choose", ("model",)),
    },
    "worker": {
        "queue_us": Family("How long units waited in the ready set", _CLASS),
        "run_us": Family("Duration of steps", _NODE),
        "batch_size": Family("Units in a step", _NODE),
        "busy_us": Family("Time in steps", _CLASS, counter=True),
        "utilisation": Family("Share of the last 10 s that was spent in steps"),
        "misses": Family("Walks that ended because their deadline passed", _CLASS, counter=True),
        "drops": Family("Units that were dropped before they were computed", ("reason",), counter=True),
        "over_bound": Family("Steps that took longer than max_step_ms", _NODE, counter=True),
        "ready_units": Family("Nodes that could run now", _CLASS),
        "oldest_ready_us": Family("Age of the oldest ready unit", _CLASS),
        "pages_free": Family("Attention pages", _CACHE),
        "pages_held": Family("Attention pages", _CACHE),
    },
}
CONTROL_COUNTERS = {CHUNKS, *EVENTS.values()}


@dataclass(frozen=True)
class _Named:
    """One value or histogram with where it belongs."""

    family: str
    spec: Family
    labels: tuple[tuple[str, str], ...]
    scale: float
    value: float | Distribution


def pieces_of(stats: Collected) -> Iterator[bytes]:
    """The text in pieces that take about half a millisecond at most: whoever sends it can pause in between."""
    up = GaugeMetricFamily(
        "mstar_up", "1 if the process answers; a worker in a long step does not", labels=("process",)
    )
    for process in sorted([*stats.values, *stats.silent]):
        up.add_metric((process,), float(process in stats.values))
    yield _text(up)
    by_family: dict[tuple[str, tuple[str, ...]], list[_Named]] = {}
    for process in sorted(stats.values):
        given: dict[str, float | Distribution] = {**stats.values[process], **stats.histograms.get(process, {})}
        for name, value in sorted(given.items()):
            named = _named(process, name, value)
            by_family.setdefault((named.family, tuple(label for label, _ in named.labels)), []).append(named)
    for (name, labels), members in by_family.items():
        if not isinstance(members[0].value, Distribution):
            yield _text(_metric(name, labels, members))
            continue
        for number, member in enumerate(members):
            text = _text(_metric(name, labels, [member]))
            yield text if number == 0 else text.split(b"\n", 2)[2]  # a family is described once


def _text(metric: Metric) -> bytes:
    return generate_latest(_Single(metric))


class _Single:
    """What generate_latest takes: a registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def _named(process: str, name: str, value: float | Distribution) -> _Named:
    kind, _, rank = process.partition("/")
    base, *parts = name.split("/")
    spec = FAMILIES.get(kind, {}).get(base, Family())
    if base in CONTROL_COUNTERS or base.endswith("_total"):
        spec = replace(spec, counter=True)
    names = spec.labels if len(spec.labels) == len(parts) else tuple(f"l{i + 1}" for i in range(len(parts)))
    labels = [("rank", rank)] if rank else []
    labels += zip(names, parts, strict=True)
    unscaled = base.removesuffix("_total").removesuffix("_us")
    is_time = unscaled != base.removesuffix("_total")
    # A value with other labels than its namesakes is another family: Prometheus takes each name with one set of labels.
    family = f"mstar_{kind}_{unscaled}" + ("" if len(spec.labels) == len(parts) or not spec.labels else "_all")
    return _Named(family + "_seconds" * is_time, spec, tuple(labels), 1e-6 if is_time else 1.0, value)


def _metric(name: str, labels: tuple[str, ...], members: Sequence[_Named]) -> Metric:
    doc = members[0].spec.doc or name.removeprefix("mstar_").replace("_", " ")
    if isinstance(members[0].value, Distribution):
        histogram = HistogramMetricFamily(name, doc, labels=labels)
        for member in members:
            assert isinstance(member.value, Distribution)
            histogram.add_metric(
                [value for _, value in member.labels],
                _buckets(member.value, member.scale),
                member.value.total * member.scale,
            )
        return histogram
    family = CounterMetricFamily if members[0].spec.counter else GaugeMetricFamily
    metric = family(name, doc, labels=labels)
    for member in members:
        assert not isinstance(member.value, Distribution)
        metric.add_metric([value for _, value in member.labels], member.value * member.scale)
    return metric


def _buckets(given: Distribution, scale: float) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    bounds = [*(floatToGoString(float(f"{bound * scale:.6g}")) for bound in given.bounds), "+Inf"]
    seen, buckets = 0, []
    for bound, count in zip(bounds, given.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets
