"""The node of the codec: the sound of each chunk of ids."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import torch

from generators.orpheus.frames import AudioIds, Frame
from generators.orpheus.noise import Noise
from generators.orpheus.sound import Kept, Sounds
from mstar_rt.graph import StreamChunk
from mstar_rt.model import NodeCall, NodeResult


def nothing_heard() -> dict[str, torch.Tensor]:
    """What the codec carries in front of the first frame."""
    return {"heard": torch.zeros(1, dtype=torch.int64), "kept": torch.zeros(0)}


class Codec:
    """A chunk of ids -> the samples that are decided with it, none if it completes no frame.

    `heard` int64 [1 + C] is the number of frames so far and the codes of the one that is begun, `kept` [K] what the
    layers keep (none: nothing was heard). The items of a call are frames; behind the last one those by which the
    network looks ahead.
    """

    def __init__(self, sounds: Sounds, ids: AudioIds) -> None:
        self._sounds, self._ids = sounds, ids

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        frames, _, num_before = self._heard(call)
        return max(1, self._num_steps(call, num_before + len(frames)) - num_before)

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._run(call) for call in calls]

    def _run(self, call: NodeCall) -> NodeResult:
        frames, begun, num_before = self._heard(call)
        num_frames = num_before + len(frames)
        kept, pieces = self._so_far(call) if call.progress is None else call.progress
        pieces, noise = list(pieces), Noise(call.seed)
        for index in self._steps(call, num_before, num_frames):
            codes = frames[index - num_before] if index < num_frames else None
            samples, kept = self._sounds.step(index, codes, kept, num_frames if self._ends(call) else None, noise)
            pieces.append(samples)
        if not call.is_last_part:
            return NodeResult({}, progress=(kept, pieces))
        heard = torch.tensor([num_frames, *begun])
        return NodeResult({"audio": torch.cat(pieces), "heard": heard, "kept": self._sounds.pack(kept)})

    def _heard(self, call: NodeCall) -> tuple[list[Frame], list[int], int]:
        """The frames that this chunk completes, the codes of the next one, and how many frames there were before."""
        num_before, *pending = call.inputs["heard"].tolist()
        new = _chunk(call).new
        frames, begun = self._ids.take(pending, torch.cat(new).tolist() if new else [])
        return frames, begun, num_before

    def _so_far(self, call: NodeCall) -> tuple[Kept, list[torch.Tensor]]:
        packed = call.inputs["kept"]
        kept = self._sounds.unpack(packed) if len(packed) else self._sounds.nothing_kept()
        return kept, [torch.zeros(0, device=kept[0].device)]

    def _steps(self, call: NodeCall, num_before: int, num_frames: int) -> range:
        steps = range(num_before, self._num_steps(call, num_frames))
        return steps if call.part is None else steps[call.part.start : call.part.stop]

    def _num_steps(self, call: NodeCall, num_frames: int) -> int:
        return self._sounds.num_steps(num_frames, final=self._ends(call))

    def _ends(self, call: NodeCall) -> bool:
        return _chunk(call).final


def _chunk(call: NodeCall) -> StreamChunk:
    return cast(StreamChunk, call.inputs["ids"])
