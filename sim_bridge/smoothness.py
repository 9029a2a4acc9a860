"""How smooth a motion made of action chunks is: at the seams between chunks, and inside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mstar_rt.client.control.action_queue import RobotAction

Actions = NDArray[np.floating]


@dataclass(frozen=True)
class Stretch:
    """Actions [n, A] that were executed one after the other without a hold, and which chunk each one is of [n]."""

    actions: Actions
    chunk_seq: NDArray[np.int64]


def stretches(taken: Iterable[RobotAction]) -> list[Stretch]:
    """What a robot executed in one episode, cut where it held or stopped."""
    found: list[Stretch] = []
    rows: list[Actions] = []
    seqs: list[int] = []
    for action in [*taken, None]:
        if action is not None and action.kind == "chunk":
            assert action.action is not None
            assert action.chunk_seq is not None
            rows.append(action.action)
            seqs.append(action.chunk_seq)
        elif rows:
            found.append(Stretch(np.array(rows), np.array(seqs)))
            rows, seqs = [], []
    return found


def typical_step(executed: Sequence[Stretch]) -> float:
    """Median over the ticks within chunks of max |a[t] - a[t-1]| over the dimensions; NaN without any."""
    steps = [np.abs(np.diff(each.actions, axis=0)).max(axis=1)[_same_chunk(each, 1)] for each in executed]
    values = np.concatenate(steps or [np.empty(0)])
    return float(np.median(values)) if len(values) else float("nan")


def jerk_ratio(executed: Sequence[Stretch]) -> float:
    """Root mean square of the third difference a[t] - 3 a[t-1] + 3 a[t-2] - a[t-3] of the executed actions, over
    where a seam lies between the four, divided by that over where none does. 1: nobody can tell where chunks meet.
    NaN where there is nothing to divide.
    """
    inside, across = [], []
    for stretch in executed:
        squares = np.sum(np.diff(stretch.actions, 3, axis=0) ** 2, axis=1)
        same = _same_chunk(stretch, 3)
        inside.append(squares[same])
        across.append(squares[~same])
    within, over = np.concatenate(inside or [np.empty(0)]), np.concatenate(across or [np.empty(0)])
    if not len(within) or not len(over) or not within.any():
        return float("nan")
    return float(np.sqrt(over.mean() / within.mean()))


def _same_chunk(stretch: Stretch, order: int) -> NDArray[np.bool_]:
    """Of each run of order + 1 actions, whether all are of one chunk."""
    seqs = stretch.chunk_seq
    return seqs[order:] == seqs[: len(seqs) - order] if len(seqs) > order else np.empty(0, np.bool_)
