"""Runs a batch of one node: what a step is."""

from mstar_rt.engine.engine import (
    Engine,
    KVCacheEngine,
    StatelessEngine,
    build_engine,
    checked_batch_key,
    checked_num_items,
)
from mstar_rt.engine.outcome import Outcome, run_isolating_failures

__all__ = [
    "Engine", "KVCacheEngine", "Outcome", "StatelessEngine", "build_engine", "checked_batch_key",
    "checked_num_items", "run_isolating_failures",
]  # fmt: skip
