"""Temporal ensembling: every tick gets a weighted mean of all chunks that cover it. Source: arXiv 2304.13705."""

from __future__ import annotations

from collections import deque

import numpy as np

DEFAULT_DECAY = 0.01


class TemporalEnsemble:
    """Weight exp(-decay * i), i = 0 being the oldest chunk that covers the tick. It keeps the newest `action_horizon`
    chunks, which is as many as can cover a tick when each tick brings one.
    """

    def __init__(self, action_horizon: int, decay: float = DEFAULT_DECAY) -> None:
        self._decay = decay
        self._chunks: deque[tuple[int, np.ndarray]] = deque(maxlen=action_horizon)

    def add(self, tick: int, actions: np.ndarray) -> np.ndarray:
        """The mean for the ticks of a new chunk.

        Args:  tick: of row 0.  actions [H, A] float32, as the policy gives them.
        """
        self._chunks.append((tick, actions))
        horizon = len(actions)
        total = np.zeros(actions.shape, np.float64)
        weights = np.zeros((horizon, 1), np.float64)
        num_older = np.zeros((horizon, 1), np.float64)
        for first, rows in self._chunks:
            low, high = max(first, tick), min(first + len(rows), tick + horizon)
            if low >= high:
                continue
            here = slice(low - tick, high - tick)
            weight = np.exp(-self._decay * num_older[here])
            total[here] += weight * rows[low - first : high - first]
            weights[here] += weight
            num_older[here] += 1
        return (total / weights).astype(np.float32)
