"""What nodes without memory between calls have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from mstar_rt.model import NodeCall, NodeResult


class Stateless:
    """A node whose calls are computed one by one."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult(self.compute(call)) for call in calls]

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        raise NotImplementedError
