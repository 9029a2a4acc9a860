"""Two chunks, number by number and bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import MstarError
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor


@dataclass(frozen=True)
class Difference:
    """Chunk `chunk` of the recording (from 1) answers observation `seq` of `epoch`, on connection `connection` (from
    1). `step` and `dimension` are those of the first number that differs, `recorded` and `replayed` its two values;
    None: it is not a number that differs. `detail` says what else does. `largest` is over all numbers of the chunk.
    """

    chunk: int
    connection: int
    epoch: int
    seq: int
    detail: str = ""
    step: int | None = None
    dimension: int | None = None
    name: str = ""
    recorded: float | None = None
    replayed: float | None = None
    largest: float = 0.0

    def __str__(self) -> str:
        where = f"chunk {self.chunk} (observation {self.seq}, epoch {self.epoch}, connection {self.connection})"
        if self.step is None:
            return f"{where}: {self.detail}"
        dimension = f"dimension {self.dimension}" + (f" ({self.name})" if self.name else "")
        shown = f"recorded {_shown(self.recorded)}, replayed {_shown(self.replayed)}"
        why = f"; {self.detail}" if self.detail else ""
        return f"{where}, step {self.step}, {dimension}: {shown}{why}"


def difference(
    recorded: wire.ActionChunk, replayed: wire.ActionChunk, chunk: int, connection: int, names: Sequence[str] = ()
) -> Difference | None:
    """None: the actions are equal bit for bit."""
    place = (chunk, connection, recorded.epoch, recorded.answers_seq)
    try:
        ours, theirs = _actions(recorded), _actions(replayed)
    except MstarError as error:
        return Difference(*place, f"it cannot be read: {error}")
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Difference(
            *place, f"recorded {ours.dtype} {list(ours.shape)}, replayed {theirs.dtype} {list(theirs.shape)}"
        )
    differs = _bits(ours) != _bits(theirs)
    if not differs.any():
        return None
    step, dimension = (int(index) for index in np.argwhere(differs)[0])
    return Difference(
        *place, _circumstances(recorded, replayed), step, dimension, names[dimension] if names else "",
        float(ours[step, dimension]), float(theirs[step, dimension]),
        float(np.max(np.abs(ours.astype(np.float64) - theirs))),
    )  # fmt: skip


def _actions(chunk: wire.ActionChunk) -> np.ndarray:
    actions = array_from_tensor(chunk.actions, "actions")
    return actions.reshape(len(actions), -1) if actions.ndim > 1 else actions.reshape(-1, 1)


def _bits(actions: np.ndarray) -> np.ndarray:
    """So that 0.0 and -0.0 differ."""
    return np.ascontiguousarray(actions).view(f"u{actions.dtype.itemsize}")


def _circumstances(recorded: wire.ActionChunk, replayed: wire.ActionChunk) -> str:
    found = []
    for name, what in (("num_denoise_steps", "denoise steps"), ("delay_assumed", "actions of delay")):
        ours, theirs = getattr(recorded, name), getattr(replayed, name)
        if ours != theirs:
            found.append(f"it was made with {ours} {what}, and is with {theirs} now")
    return ", ".join(found)


def _shown(value: float | None) -> str:
    """All digits that tell a float32 from its neighbours."""
    return f"{value:.9g}"
