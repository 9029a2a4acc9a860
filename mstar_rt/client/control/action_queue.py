"""`ActionQueue`: which action is due now, from chunks that come late, out of order, or not at all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mstar_rt.clock import Clock
from mstar_rt.errors import InvalidArgument

REPEAT_LAST = "repeat_last"
"""As `hold`: the last action again. For positions, where that stands still; not for velocities."""


@dataclass(frozen=True)
class QueuedChunk:
    """Actions [n, A], row 0 for the tick of observation `seq`, which was made at `made_ns` of the queue's clock.

    `tick` counts the actions that the robot had consumed in `epoch` when it made that observation.
    """

    seq: int
    epoch: int
    tick: int
    made_ns: int
    actions: np.ndarray
    instruction: str | None = None


@dataclass(frozen=True)
class Merged:
    """What became of a chunk.

    "used": it is what the robot executes from now on, from row `start_index`; rows before are for ticks that are over.
    "older": it answers an observation that is not newer than that of the chunk in use.
    "epoch": it belongs to another episode or connection.
    "past": all its rows are for ticks that are over.

    `seam_jump` is max |new - old| over the dimensions of the action that is due next; None where the old chunk had
    none.
    """

    outcome: Literal["used", "older", "epoch", "past"]
    start_index: int = 0
    seam_jump: float | None = None


@dataclass(frozen=True)
class RobotAction:
    """What the robot does in this control period.

    "chunk": `action` [A], row `index` of the chunk that answers observation `chunk_seq`, which was made `age_s` ago.
    "hold": no action is due: `action` is what was given as `hold`, or the last one, or None.
    "stop": nothing newer than `max_action_age_s` has come: `action` is what was given as `hold`, as an array, or None.
    `reason` says why there is no action of a chunk; `instruction` is the one in force when the chunk was made.
    """

    kind: Literal["chunk", "hold", "stop"]
    action: np.ndarray | None
    chunk_seq: int | None = None
    index: int | None = None
    age_s: float | None = None
    reason: str = ""
    instruction: str | None = None

    def because(self, problem: str) -> RobotAction:
        return dataclasses.replace(self, reason=f"{self.reason}: {problem}")


class ActionQueue:
    """Holds the newest chunk and counts consumed actions. The robot consumes an action with each `take` that gives
    one of a chunk; while it holds or stops it consumes nothing, so that what it has not done yet is still due
    afterwards.

    Args:
        hold: what to do while no action is due: an action [A], REPEAT_LAST, or None.
        max_action_age_s: an action is not given out when the observation behind it is older; None: at any age.
    """

    def __init__(
        self, clock: Clock, hold: np.ndarray | str | None = None, max_action_age_s: float | None = None
    ) -> None:
        if isinstance(hold, str) and hold != REPEAT_LAST:
            raise InvalidArgument(f'hold is {hold!r}, expected an action, "{REPEAT_LAST}" or None')
        self._clock = clock
        self._hold = hold
        self._max_age_ns = None if max_action_age_s is None else int(max_action_age_s * 1e9)
        self._chunk: QueuedChunk | None = None
        self._last: np.ndarray | None = None
        self._waiting_since_ns: int | None = None
        self.epoch = 0
        self.num_consumed = 0
        """In this epoch: the tick of an observation that is made now."""

    # ---- in

    def merge(self, chunk: QueuedChunk) -> Merged:
        """Use `chunk` from now on, unless that would take the robot back in time."""
        if chunk.epoch != self.epoch:
            return Merged("epoch")
        current = self._chunk
        if current is not None and current.epoch == self.epoch and chunk.seq <= current.seq:
            return Merged("older")
        start = self.num_consumed - chunk.tick
        assert start >= 0, f"observation {chunk.seq} is of tick {chunk.tick}, {-start} from now"
        if start >= len(chunk.actions):
            return Merged("past")
        due = self._due_row()
        self._chunk = chunk
        jump = None if due is None else float(np.max(np.abs(chunk.actions[start] - due)))
        return Merged("used", start, jump)

    def start_epoch(self, epoch: int, keep_actions: bool) -> None:
        """From now on only chunks of `epoch` are taken. `keep_actions`: the same motion goes on over another
        connection; otherwise it is another episode, and nothing of the last one is executed or repeated.
        """
        self.epoch = epoch
        self.start_ticks()
        if not keep_actions:
            self._chunk = self._last = self._waiting_since_ns = None

    def start_ticks(self) -> None:
        """Count consumed actions from here. Only while no chunk of this epoch is in use or on its way."""
        if self._chunk is not None:
            self._chunk = dataclasses.replace(self._chunk, tick=self._chunk.tick - self.num_consumed)
        self.num_consumed = 0

    # ---- out

    def take(self) -> RobotAction:
        """The action due now; the next `take` gives the next one."""
        now_ns = self._clock.now_ns()
        if self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        age_ns = now_ns - (self._waiting_since_ns if self._chunk is None else self._chunk.made_ns)
        if self._max_age_ns is not None and age_ns > self._max_age_ns:
            return self._stop(age_ns)
        due = self._due_row()
        if self._chunk is None or due is None:
            return self._holding(age_ns)
        index = self.num_consumed - self._chunk.tick
        self.num_consumed += 1
        self._last = due
        return RobotAction(
            "chunk", due.copy(), self._chunk.seq, index, age_ns / 1e9, instruction=self._chunk.instruction
        )

    def _stop(self, age_ns: int) -> RobotAction:
        action = self._hold.copy() if isinstance(self._hold, np.ndarray) else None
        age_s = age_ns / 1e9
        if self._chunk is None:
            return RobotAction("stop", action, reason=f"no action has come for {age_s:.3f} s")
        reason = f"the newest observation that was answered is {age_s:.3f} s old"
        return RobotAction("stop", action, age_s=age_s, reason=reason)

    def _holding(self, age_ns: int) -> RobotAction:
        action = self._last if isinstance(self._hold, str) else self._hold
        age_s = None if self._chunk is None else age_ns / 1e9
        reason = "no action has come yet" if self._chunk is None else "all actions that have come are executed"
        return RobotAction("hold", None if action is None else action.copy(), age_s=age_s, reason=reason)

    # ---- what the next observation says

    @property
    def newest_seq(self) -> int | None:
        """The observation of this epoch that the chunk in use answers; None: there is none."""
        return None if self._chunk is None or self._chunk.epoch != self.epoch else self._chunk.seq

    @property
    def executed_index(self) -> int:
        """The row of that chunk that belongs to the last tick; -1: the tick before its first row."""
        return -1 if self._chunk is None or self.newest_seq is None else self.num_consumed - self._chunk.tick - 1

    @property
    def last_action(self) -> np.ndarray | None:
        """That was given out in this episode."""
        return self._last

    @property
    def chunk(self) -> QueuedChunk | None:
        return self._chunk

    def remaining(self) -> np.ndarray | None:
        """Actions [n, A] that are still to come, the due one first; None: none, or they are too old to be given out."""
        if self._chunk is None or self._is_too_old(self._chunk):
            return None
        rows = self._chunk.actions[self.num_consumed - self._chunk.tick :]
        return rows if len(rows) else None

    @property
    def num_remaining(self) -> int:
        rows = self.remaining()
        return 0 if rows is None else len(rows)

    def time_until_empty_s(self, control_hz: float) -> float:
        """Until the actions are executed or too old, at one action a control period."""
        executed_s = self.num_remaining / control_hz
        if self._chunk is None or self._max_age_ns is None:
            return executed_s
        age_ns = self._clock.now_ns() - self._chunk.made_ns
        return max(0.0, min(executed_s, (self._max_age_ns - age_ns) / 1e9))

    def _due_row(self) -> np.ndarray | None:
        if self._chunk is None:
            return None
        index = self.num_consumed - self._chunk.tick
        return self._chunk.actions[index] if index < len(self._chunk.actions) else None

    def _is_too_old(self, chunk: QueuedChunk) -> bool:
        return self._max_age_ns is not None and self._clock.now_ns() - chunk.made_ns > self._max_age_ns
