"""The demo as it happens: progress, success so far, plan latency and where it goes."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sim_bridge.episode import EpisodeResult
from sim_bridge.summary import percentiles_ms, plan_split_ms

NUM_SPLIT_ROWS = 6


class Dashboard:
    """Live in a terminal; one line per finished episode where the output is a file or a pipe."""

    def __init__(self, num_plans_expected: int, num_episodes: int) -> None:
        self._console = Console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._plans = self._bar.add_task("plans", total=num_plans_expected)
        self._num_episodes = num_episodes
        self._running: dict[tuple[str, int], EpisodeResult] = {}
        self._finished: list[EpisodeResult] = []
        self._live = (
            Live(self._render(), console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        )

    def __enter__(self) -> Dashboard:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._render())
            self._live.__exit__(kind, error, trace)

    def on_plan(self, result: EpisodeResult) -> None:
        self._running[result.kind, result.seed] = result
        self._bar.advance(self._plans)
        self._refresh()

    def on_episode(self, result: EpisodeResult) -> None:
        self._running.pop((result.kind, result.seed), None)
        self._finished.append(result)
        self._refresh()
        if self._live is None:
            self._print_line(result)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._render())

    def _print_line(self, result: EpisodeResult) -> None:
        latency = percentiles_ms(result.plan_ms)
        outcome = result.error or ("reached" if result.success else "missed")
        self._console.print(
            f"[{len(self._finished)}/{self._num_episodes}] {result.kind} {result.seed}: "
            f"{result.start_distance_m * 1e3:.0f} -> {result.final_distance_m * 1e3:.0f} mm, {outcome}; "
            f"plan p50 {latency.get('p50', 0):.0f} ms; so far {self._successes()}",
            highlight=False,
            soft_wrap=True,
        )

    def _successes(self) -> str:
        parts = []
        for kind in dict.fromkeys(result.kind for result in self._finished):
            group = [result for result in self._finished if result.kind == kind]
            parts.append(f"{kind} {sum(result.success for result in group)}/{len(group)}")
        return ", ".join(parts) or "none finished"

    def _render(self) -> Group:
        results = [*self._finished, *self._running.values()]
        latency = percentiles_ms([ms for result in results for ms in result.plan_ms])
        table = Table.grid(padding=(0, 2))
        table.add_row("success so far", self._successes())
        table.add_row("episodes", f"{len(self._finished)} of {self._num_episodes}")
        if latency:
            table.add_row("plan latency", f"p50 {latency['p50']:.0f} ms, p95 {latency['p95']:.0f} ms")
            split = sorted(plan_split_ms(results).items(), key=lambda item: -item[1])[:NUM_SPLIT_ROWS]
            table.add_row("of which", ", ".join(f"{name} {ms:.1f}" for name, ms in split))
        return Group(self._bar, table)
