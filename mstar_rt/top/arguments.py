"""The command's arguments; light, because every `mstar-rt` command builds the whole parser."""

from __future__ import annotations

import argparse

from mstar_rt.connection_arguments import add_connection_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", nargs="?", default="127.0.0.1:50051", help="host:port of a server")
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object and end")
    parser.add_argument("--period-s", type=float, default=1.0, help="between two looks; rates are over it (1)")
    add_connection_arguments(parser)
