"""Runs a batch of one node: what a step is."""

from mstar_rt.engine.engine import Engine, KVCacheEngine, StatelessEngine, build_engine, checked_batch_key
from mstar_rt.engine.outcome import Outcome, run_isolating_failures

__all__ = [
    "Engine", "KVCacheEngine", "Outcome", "StatelessEngine", "build_engine", "checked_batch_key",
    "run_isolating_failures",
]  # fmt: skip
