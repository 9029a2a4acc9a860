"""What nodes without memory between calls have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch

from mstar_rt.model import NodeCall, NodeResult, OneByOne


class Stateless(OneByOne):
    """A node that gives its outputs and nothing besides."""

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult(self.compute(call))

    @abstractmethod
    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]: ...
