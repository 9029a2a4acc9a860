"""The policy part of the demo as it happens: a row for each setting, the running one below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sim_bridge.policy_episode import PolicyEpisode

COLUMNS = (
    "added delay", "chunking", "success", "seam jump, mm", "over step", "jerk ratio", "starved ticks", "action age, ms",
    "misses", "chunk latency, ms", "chunks", "batch",
)  # fmt: skip
TABLE_WIDTH = 170


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Percentiles: p50 / p95 of seam jumps, p50 / p99 of action ages, p50 / p95 / p99 of chunk latencies."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    return table


def cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['added_delay_ms']:.0f} ms",
        row["chunking"],
        f"{row['success_rate']:.2f} of {row['num_episodes']}",
        _joined(row["seam_jump_mm"], ".1f"),
        _joined(row["seam_jump_over_step"], ".1f"),
        "-" if row["jerk_ratio"] is None else f"{row['jerk_ratio']:.1f}",
        f"{row['starvation_ticks']} of {row['num_ticks']}",
        _joined(row["action_age_ms"], ".0f"),
        f"{row['deadline_misses']} ({row['deadline_miss_rate']:.1%})",
        _joined(row["chunk_latency_ms"], ".0f"),
        str(row["num_chunks"]),
        f"{row['mean_batch']:.1f}",
    ]


def _joined(percentiles: Mapping[str, float], form: str) -> str:
    return " / ".join(format(value, form) for value in percentiles.values()) or "-"


class PolicyDashboard:
    """Live in a terminal; one line per setting where the output is a file or a pipe."""

    def __init__(self, num_settings: int) -> None:
        self._console = Console()
        self._num_settings = num_settings
        self._rows: list[Mapping[str, Any]] = []
        self._running = ""
        self._ended: list[PolicyEpisode] = []
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> PolicyDashboard:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(table_of(self._rows))
            self._live.__exit__(kind, error, trace)
        else:
            Console(width=TABLE_WIDTH).print(table_of(self._rows))

    def on_start(self, name: str) -> None:
        self._running, self._ended = name, []
        self._refresh()

    def on_episode(self, episode: PolicyEpisode) -> None:
        self._ended.append(episode)
        self._refresh()

    def on_setting(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if self._live is None:
            facts = ", ".join(
                f"{column} {cell}" for column, cell in zip(COLUMNS, cells(row), strict=True) if column != "over step"
            )
            self._console.print(
                f"[{len(self._rows)}/{self._num_settings}] {facts}", highlight=False, soft_wrap=True, markup=False
            )
        self._refresh()

    def _refresh(self) -> None:
        if self._live is None:
            return
        solved = sum(episode.success for episode in self._ended)
        now = f"now: chunking {self._running}: {solved} of {len(self._ended)} episodes solved"
        self._live.update(Group(table_of(self._rows), Text(now)))
