"""One step of the flow for a batch of requests, each at a step of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mstar_rt.model import NodeCall
from mstar_rt.model.policy import NO_CHUNKING
from mstar_rt.nn.attention import AttentionPlan
from policies.chunking.guidance import clamp_prefix, guidance_weight, guided, guided_identity
from policies.pi05.compiled_velocity import Velocity
from policies.pi05.expert import Modulation
from policies.pi05.schedule import ACTION_TIME, Schedules


def mode_of(call: NodeCall) -> str:
    """How this request goes on from its previous actions, if it has any."""
    return str(call.params["chunking"]) if len(call.inputs["guidance"]) else NO_CHUNKING


class FlowStep:
    """One Euler step of a batch: x - v / n at the times 1, 1 - 1/n, ... 1/n."""

    def __init__(
        self, velocity: Velocity, schedules: Schedules, calls: Sequence[NodeCall], attention: AttentionPlan
    ) -> None:
        self._velocity_of = velocity
        self._calls = calls
        self._attention = attention
        self._x = torch.stack([call.inputs["x"] for call in calls])
        self._steps = [(call.iteration[-1], len(call.inputs["times"])) for call in calls]
        self._modulation, self._rows = schedules.rows(self._steps)

    def plain(self) -> torch.Tensor:
        """No chunking, and guidance with the identity in place of the Jacobian."""
        velocity = self._velocity(self._x, self._per_request())
        guided_rows = [row for row, call in enumerate(self._calls) if mode_of(call) == "guided_identity"]
        if guided_rows:
            x, rows = self._x[guided_rows], torch.tensor(guided_rows, device=self._x.device)
            bent = guided_identity(x, velocity[guided_rows], *self._guidance(guided_rows))
            velocity = velocity.index_copy(0, rows, bent)
        return self._moved(self._x, velocity)

    def guided(self) -> torch.Tensor:
        """Guidance by the true Jacobian."""

        def velocity_of(x: torch.Tensor) -> torch.Tensor:
            return self._velocity(x, self._per_request())

        velocity = guided(velocity_of, self._x, *self._guidance(range(len(self._calls))))
        return self._moved(self._x, velocity)

    def with_prefix(self) -> torch.Tensor:
        """The first actions are the previous ones, at time 0."""
        frozen = torch.stack([call.inputs["guidance"] for call in self._calls]) > 0
        previous = torch.stack([call.inputs["previous"] for call in self._calls])
        x = clamp_prefix(self._x, previous, frozen)
        index = torch.where(frozen, ACTION_TIME, torch.tensor(self._rows, device=x.device)[:, None])
        velocity = self._velocity(x, self._modulation.rows(index))
        return clamp_prefix(self._moved(x, velocity), previous, frozen)

    def _velocity(self, x: torch.Tensor, modulation: Modulation) -> torch.Tensor:
        return self._velocity_of(x, modulation, self._attention)

    def _moved(self, x: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        sizes = [1 / num_steps for _, num_steps in self._steps]
        if len(set(sizes)) == 1:
            return torch.sub(x, velocity, alpha=sizes[0])
        return x - _column(torch.tensor(sizes).to(x)) * velocity

    def _per_request(self) -> Modulation:
        if len(set(self._rows)) == 1:
            return self._modulation.rows(self._rows[0])
        return self._modulation.rows(torch.tensor(self._rows, device=self._x.device))

    def _guidance(self, rows: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Of some of the requests: the time [B, 1, 1], previous actions [B, H, D], their weights [B, H, 1] and the
        strength [B, 1, 1]."""
        calls = [self._calls[row] for row in rows]
        previous = torch.stack([call.inputs["previous"] for call in calls])
        weights = torch.stack([call.inputs["guidance"] for call in calls]).unsqueeze(-1)
        times = [1 - step / num_steps for step, num_steps in (self._steps[row] for row in rows)]
        time = torch.tensor(times, dtype=torch.float64)
        bound = torch.tensor([call.params["max_guidance_weight"] for call in calls], dtype=torch.float64)
        strength = guidance_weight(time, bound)
        return _column(time.to(previous)), previous, weights, _column(strength.to(previous))


def _column(values: torch.Tensor) -> torch.Tensor:
    """[B] -> [B, 1, 1]."""
    return values[:, None, None]
