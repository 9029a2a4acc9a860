"""The three ways to show: live, once, as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live

from mstar_rt.client import Client, connect
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.connection_arguments import connection
from mstar_rt.errors import ConfigError, Unavailable
from mstar_rt.top.figures import Figures, figures
from mstar_rt.top.snapshot import Snapshot, take
from mstar_rt.top.view import view

MIN_PERIOD_S = 0.2
PIPE_COLUMNS = 200
"""Width of what is not printed to a terminal."""


def run(args: argparse.Namespace, out: TextIO | None = None, sleep: Callable[[float], None] = time.sleep) -> int:
    """Raises:  Unavailable: nobody answers there."""
    if not args.period_s >= MIN_PERIOD_S:
        raise ConfigError(f"--period-s is {args.period_s:g}, expected at least {MIN_PERIOD_S:g}")
    # A width of 0 is taken from the terminal.
    console = Console(file=out)
    if not console.is_terminal:
        console = Console(file=out, width=PIPE_COLUMNS)
    clock = MonotonicClock()
    with connect(args.address, **connection(args)) as client:
        before = take(client, clock)
        sleep(args.period_s)
        if args.json or args.once or not console.is_terminal:
            found = figures(take(client, clock), before)
            if args.json:
                console.file.write(as_json(found) + "\n")
            else:
                console.print(view(found))
            return 0
        with suppress(KeyboardInterrupt):
            _show(console, client, clock, before, args.period_s, sleep)
    return 0


def as_json(found: Figures) -> str:
    return json.dumps(dataclasses.asdict(found), indent=1)


def _show(
    console: Console, client: Client, clock: Clock, before: Snapshot, period_s: float, sleep: Callable[[float], None]
) -> None:
    """Until it is interrupted. A server that does not answer is asked again."""
    shown = figures(before)
    with Live(view(shown), console=console, screen=True, auto_refresh=False) as live:
        while True:
            problem = ""
            try:
                now = take(client, clock)
                before, shown = now, figures(now, before)
            except Unavailable as error:
                problem = str(error)
            live.update(view(shown, problem), refresh=True)
            sleep(period_s)
