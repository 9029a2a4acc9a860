"""What every benchmark writes: measurements, and checks against asked-for figures, as a table, JSON and a plot."""

from benchmarks.report.report import Check, Report, Row, bars, finish, percentile_rows

__all__ = ["Check", "Report", "Row", "bars", "finish", "percentile_rows"]
