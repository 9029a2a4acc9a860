"""Figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mstar_rt.top.figures import CLASSES, Figures, NodeFigures, RankFigures, SessionFigures

MAX_SESSIONS, MAX_NODES = 40, 12
MISSED_TOO_MUCH, BUSY = 0.01, 0.8
"""Shares from which a figure is red: of missed answers, and of a rank's time."""


def view(figures: Figures, problem: str = "") -> RenderableType:
    """`problem`: why these figures are not the newest."""
    parts: list[RenderableType] = [_head(figures), _ranks(figures), _sessions(figures), _nodes(figures)]
    if problem:
        parts.insert(0, Text(problem, style="bold red"))
    return Group(*parts)


def _head(figures: Figures) -> Text:
    text = Text.assemble((f"mstar-rt {figures.version}", "bold"), f" at {figures.address}, up {_age(figures.uptime_s)}")
    if figures.draining:
        text.append(", draining", "bold red")
    text.append(f"   running {figures.requests_running:.0f}")
    for kind in CLASSES:
        if kind in figures.requests_per_s:
            text.append(f"   {kind} {figures.requests_per_s[kind]:.1f}/s")
    text.append("   ticks missed ")
    text.append(f"{figures.ticks_missed:.0f}", "red" if figures.ticks_missed else "")
    failed = {code: count for code, count in figures.requests_ended.items() if code not in ("OK", "CANCELLED")}
    for code, count in failed.items():
        text.append(f"   {code} {count:.0f}", "red")
    for model, reason in figures.not_serving.items():
        text.append(f"\n{model} does not serve: {reason}", "bold red")
    return text


def _ranks(figures: Figures) -> Table:
    table = _table(
        "ranks", "rank", "busy", "admitted", "steps/s", "batch", *CLASSES, "missed", "dropped", "over", "pages"
    )
    table.columns[5].header = "ready: control"
    for rank in figures.ranks:
        if not rank.answers:
            table.add_row(str(rank.rank), Text("silent", "bold red"))
        else:
            table.add_row(*_rank_cells(rank, figures.admitted_utilisation.get(str(rank.rank))))
    return table


def _rank_cells(rank: RankFigures, admitted: float | None) -> list[RenderableType]:
    return [
        str(rank.rank),
        Text(f"{rank.utilisation:.0%}", "red" if rank.utilisation >= BUSY else ""),
        "-" if admitted is None else f"{admitted:.0%}",
        _number(rank.steps_per_s, 1),
        _number(rank.mean_batch, 2),
        *(_ready(rank, kind) for kind in CLASSES),
        _red(sum(rank.misses.values())),
        _red(rank.num_dropped),
        _red(rank.num_over_bound),
        "-" if rank.pages_used is None else f"{rank.pages_used:.0%}",
    ]


def _ready(rank: RankFigures, kind: str) -> str:
    num_ready = rank.ready.get(kind, 0.0)
    return f"{num_ready:.0f} ({rank.oldest_ready_ms.get(kind, 0.0):.1f} ms)" if num_ready else "0"


def _sessions(figures: Figures) -> Table:
    table = _table(
        f"sessions ({len(figures.sessions)})", "session", "kind", "model", "client", "age", "asked Hz", "Hz", "p50 ms",
        "p99 ms", "budget ms", "answers", "missed", "dropped", "last: queue+run+transport ms",
    )  # fmt: skip
    for session in figures.sessions[:MAX_SESSIONS]:
        table.add_row(*_session_cells(session))
    if len(figures.sessions) > MAX_SESSIONS:
        table.add_row(f"and {len(figures.sessions) - MAX_SESSIONS} more")
    return table


def _session_cells(session: SessionFigures) -> list[RenderableType]:
    num_due = session.num_answered + session.num_missed
    is_bad = num_due > 0 and session.num_missed / num_due >= MISSED_TOO_MUCH
    last = session.last
    return [
        session.session_id,
        session.kind,
        session.model,
        session.client.removeprefix("ipv4:"),
        _age(session.age_s),
        _number(session.asked_hz or None, 1),
        f"{session.answered_hz:.1f}",
        _number(session.p50_ms, 2),
        _number(session.p99_ms, 2),
        _number(session.budget_ms or None, 0),
        str(session.num_answered),
        Text(str(session.num_missed), "red" if is_bad else ""),
        _counts(session.dropped),
        "-"
        if last is None
        else " + ".join(f"{us / 1e3:.2f}" for us in (last.queue_us, last.run_us, last.transport_us)),
    ]


def _nodes(figures: Figures) -> Table:
    table = _table("nodes", "model", "node", "steps", "steps/s", "batch", "p50 ms", "p99 ms", "of a rank")
    for node in figures.nodes[:MAX_NODES]:
        table.add_row(*_node_cells(node))
    return table


def _node_cells(node: NodeFigures) -> list[RenderableType]:
    return [
        node.model,
        node.node,
        f"{node.num_steps:.0f}",
        _number(node.steps_per_s, 1),
        f"{node.mean_batch:.2f}",
        f"{node.p50_ms:.2f}",
        f"{node.p99_ms:.2f}",
        "-" if node.busy is None else f"{node.busy:.0%}",
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    for column in columns:
        is_text = column in ("session", "kind", "model", "client", "node", "dropped")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _red(count: float) -> Text:
    return Text(f"{count:.0f}", "red" if count else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "-"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
