"""The nodes of V-JEPA 2-AC that turn frames into latents: of a request, of its context, of a goal."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from world_models.planning.cost import LAST, NEAREST, PER_STEP
from world_models.planning.options import DEFAULT_COST, GOAL_USES
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.processor import checked_finite, normalise_frames


class Encode:
    """frames [T, H, W, 3] (uint8, or float32 as normalised) -> latents [T, P, D]; those of all calls make one batch.

    Frames are encoded one by one, so they are the items of a call.
    """

    frames, latents = "frames", "latents"
    """The inputs that are encoded, and that a client may give in their place; here they are always encoded."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._dtype = encoder.norm.weight.dtype
        config = encoder.config
        self.nothing = torch.empty(0, config.num_patches, config.dim, device=encoder.norm.weight.device)

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        frames: torch.Tensor | None = call.inputs[self.frames]
        return 1 if frames is None else len(frames)

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        results = []
        for call, added in zip(calls, self._encoded(calls), strict=True):
            before = call.progress or []
            if not call.is_last_part:
                results.append(NodeResult({}, progress=[*before, added]))
            elif added is None:
                results.append(self.result(call, call.inputs[self.latents]))
            else:
                results.append(self.result(call, torch.cat([*before, added]) if before else added))
        return results

    def result(self, call: NodeCall, latents: torch.Tensor | None) -> NodeResult:
        """What the node gives, from the latents [T, P, D] of all frames; None if the call has neither."""
        assert latents is not None
        return NodeResult({"latents": latents})

    def _encoded(self, calls: Sequence[NodeCall]) -> list[torch.Tensor | None]:
        """For each call the latents of the frames of its part; None if it has no frames."""
        frames = [_part_of(call.inputs[self.frames], call) for call in calls]
        given = [part for part in frames if part is not None]
        if not given:
            return [None] * len(calls)
        pixels = torch.cat([normalise_frames(part, self._dtype) for part in given])
        latents = checked_finite(self._encoder.encode_frames(pixels).float(), "the encoder")
        encoded = iter(latents.split([len(part) for part in given]))
        return [None if part is None else next(encoded) for part in frames]


def _part_of(frames: torch.Tensor | None, call: NodeCall) -> torch.Tensor | None:
    return frames if frames is None or call.part is None else frames[call.part.start : call.part.stop]


class Observe(Encode):
    """The frames of the request as latents [T, P, D], which the client may have already; T = 0 if it gives none."""

    latents = "context_latents"

    def result(self, call: NodeCall, latents: torch.Tensor | None) -> NodeResult:
        return NodeResult({"view": self.nothing if latents is None else latents})


class ObserveGoal(Encode):
    """The goal: G latents [G, P, D], weights [G], and how they are used, an index into GOAL_USES.

    What the request gives takes the place of what the session keeps, as a whole. A rollout has no goal (G = 0) unless
    distances to it are its output.
    """

    frames, latents = "goal_frames", "goal_latents"

    def result(self, call: NodeCall, latents: torch.Tensor | None) -> NodeResult:
        is_wanted = call.params.get("output", "goal_distance") == "goal_distance"
        if not is_wanted and call.params["cost"] != DEFAULT_COST:
            raise InvalidArgument(
                f"option 'cost' is {call.params['cost']!r}, but option 'output' is {call.params['output']!r}: a cost "
                "counts with 'goal_distance' alone"
            )
        if latents is None:
            _check_nothing_given(call)
            goal, weights, mode = self._kept(call) if is_wanted else self._none()
        elif is_wanted:
            goal, mode = latents, torch.tensor(GOAL_USES.index(call.params["goal_use"]))
            weights = call.inputs["goal_weights"]
            weights = goal.new_ones(len(goal)) if weights is None else weights
            _check_goals(int(mode), weights, call.inputs["goal_weights"] is not None)
        else:
            raise InvalidArgument(
                f"a goal is given, but option 'output' is {call.params['output']!r}: leave the goal out, or ask for "
                "'goal_distance'"
            )
        horizon = call.params.get("rollout_horizon")
        if len(goal) and horizon is not None and int(mode) == PER_STEP and len(goal) != horizon:
            raise InvalidArgument(
                f"there are {len(goal)} goals to be used per_step, expected one per step: rollout_horizon is {horizon}"
            )
        return NodeResult({"goal": goal, "goal_weights": weights, "goal_mode": mode})

    @staticmethod
    def _kept(call: NodeCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        goal, weights, mode = (call.inputs[f"kept_{name}"] for name in ("goal", "goal_weights", "goal_mode"))
        if goal is None:
            raise FailedPrecondition("there is no goal yet: give goal_frames or goal_latents, or set_goal first")
        return goal, weights, mode

    def _none(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.nothing, self.nothing.new_empty(0), torch.tensor(LAST)


def _check_nothing_given(call: NodeCall) -> None:
    if call.inputs["goal_weights"] is not None:
        raise InvalidArgument("goal_weights are given without goals: give goal_frames or goal_latents with them")
    if call.params["goal_use"] != GOAL_USES[LAST]:
        raise InvalidArgument(
            f"option 'goal_use' is {call.params['goal_use']!r}, but no goal is given with it: what set_goal keeps is "
            "used as was said there"
        )


def _check_goals(mode: int, weights: torch.Tensor, is_weighted: bool) -> None:
    if mode == LAST and len(weights) != 1:
        raise InvalidArgument(
            f"there are {len(weights)} goals and option 'goal_use' is 'last', expected one goal; with several say "
            "'per_step' or 'nearest'"
        )
    if is_weighted and len(weights) == 1:
        raise InvalidArgument("goal_weights are given for one goal, expected several goals: leave them out")
    if not is_weighted:
        return
    if bool((weights < 0).any()) or not bool(weights.any()):
        raise InvalidArgument(f"goal_weights are {weights.tolist()}, expected none below 0 and one above it")
    if mode == NEAREST and not bool(weights.all()):
        raise InvalidArgument(
            f"goal_weights are {weights.tolist()}, expected all above 0 with goal_use 'nearest': a goal of weight 0 "
            "would always be the nearest"
        )
