"""Between the robot's units and the network's: statistics, differences to the state, and dimensions that only the
network has.

    state     robot units -> normalised
    actions   robot units -> less the state where they are relative -> normalised -> zeros for the other dimensions
    and back

All in float64, rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import NodeCall
from policies.pi05.normalization import Normalizer, read_norm_stats
from policies.pi05.settings import PolicySettings
from policies.pi05.settings_parts import ONLY_STATISTICS

ROUNDING = 2.0**-22
"""Of a chunk in float32, relative, with what the state in float32 adds."""
MAX_NORMALISED = 100.0
"""Of previous actions, where 1 is an ordinary one. As much as noise may have."""


class Processor:
    """The conversions with one set of statistics; `None` for values that the network takes as they are."""

    def __init__(self, settings: PolicySettings, state: Normalizer | None, action: Normalizer | None) -> None:
        self._state = state
        self._action = action
        self._num_actions = settings.action.size
        self._network_dim = settings.network.action_dim
        pairs = [(dim, to) for dim, to in enumerate(settings.relative_to) if to is not None]
        self._relative = [dim for dim, _ in pairs]
        self._to = [to for _, to in pairs]

    def normalised_state(self, state: torch.Tensor) -> torch.Tensor:
        """[S] robot units -> [S] float64."""
        state = state.to(torch.float64)
        return state if self._state is None else self._state.normalise(state)

    def network_actions(self, actions: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        """[K, A] robot units -> [K, D] float32, as differences to `state` [S] where this policy has such.

        Raises:  InvalidArgument: actions that this policy cannot have made.
        """
        rounding = ROUNDING * actions.abs().to(torch.float64)
        actions = self._moved(actions.to(torch.float64), state, -1)
        if self._action is not None:
            actions = self._action.normalise(self._action.snapped(actions, rounding))
            _check_range(actions)
        padded = torch.nn.functional.pad(actions, (0, self._network_dim - self._num_actions))
        return padded.to(torch.float32)

    def robot_actions(self, x: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        """[H, D] -> [H, A] float32, robot units."""
        actions = x[:, : self._num_actions].to(torch.float64)
        if self._action is not None:
            actions = self._action.unnormalise(actions)
        return self._moved(actions, state, 1).to(torch.float32)

    def _moved(self, actions: torch.Tensor, state: torch.Tensor | None, sign: int) -> torch.Tensor:
        if not self._relative:
            return actions
        assert state is not None
        moved = actions.clone()
        moved[:, self._relative] += sign * state.to(torch.float64)[self._to]
        return moved


def _check_range(actions: torch.Tensor) -> None:
    """A chunk that goes on from actions far beyond what the network knows is finite, and wrong in all dimensions."""
    largest = actions.abs().amax(0)
    if (largest > MAX_NORMALISED).any():
        dim = int(largest.argmax())
        raise InvalidArgument(
            f"previous_actions are {float(largest[dim]):.0f} times the range of the policy's statistics in dimension "
            f"{dim}, expected at most {MAX_NORMALISED:.0f}: are they in the policy's units? If that dimension never "
            "varied in training, send what the policy gave, or use no guided or prefix chunking"
        )


Processors = Mapping[str, Processor]
"""By the name of their statistics."""


def processors_for(settings: PolicySettings, device: str) -> Processors:
    """Raises: ConfigError: statistics are missing, or do not fit the robot."""
    if settings.normalization == "none":
        return {ONLY_STATISTICS: Processor(settings, None, None)}
    return {name: _processor(settings, Path(path), device) for name, path in settings.norm_stats.items()}


def processor_of(processors: Processors, call: NodeCall) -> Processor:
    """The one whose statistics the request names, or the only one."""
    return processors[call.params.get("normalization", next(iter(processors)))]


def _processor(settings: PolicySettings, file: Path, device: str) -> Processor:
    stats = read_norm_stats(file)
    reads_state = settings.discrete_state_input or settings.has_state_token
    for what, found in (("actions", stats.actions), ("the state", stats.state)):
        if found is None and (what == "actions" or reads_state):
            raise ConfigError(f"{file} has no statistics of {what}, which this policy needs")
    normalizers = [
        None if found is None else Normalizer(found, settings.normalization, device)
        for found in (stats.state if reads_state else None, stats.actions)
    ]
    return Processor(settings, *normalizers)
