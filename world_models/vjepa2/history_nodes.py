"""The nodes of V-JEPA 2-AC that know the past: of a request, or of its session."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable
from mstar_rt.model import NodeCall, NodeResult, OneByOne
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from world_models.planning.pose import canonical_pose, retrace
from world_models.planning.window import Window, window_of
from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.walks import HISTORY, PAST

OWN_PAST = "own past"
"""The sequence of the frames that a request brings, but the last; it ends with the walk."""
POSE_TOLERANCE = 1e-4
OF_CONTEXT = ("state", "context_actions", "context_states", "extrinsics")


class Past(NamedTuple):
    """T frames [T, P, D], the actions between them [T-1, 7], the poses before the last [T-1, 7] and at it [7], and the
    cameras [T, 6], or [0, 6] where the model takes none."""

    latents: torch.Tensor
    actions: torch.Tensor
    states: torch.Tensor
    pose: torch.Tensor
    cameras: torch.Tensor

    def from_frame(self, start: int) -> Past:
        return Past(self.latents[start:], self.actions[start:], self.states[start:], self.pose, self.cameras[start:])


class Recall(OneByOne):
    """Checks the context as a whole, and works out the poses of its past.

    context [T, P, D], past_actions and past_states [T-1, 7], pose [7], cameras [T, 6] or [0, 6]; from_history: the
    session's sequence has the past, of which num_cached frames are there already.
    """

    def __init__(self, config: PredictorConfig) -> None:
        self._config = config

    def run_one(self, call: NodeCall) -> NodeResult:
        window = window_of(call.params)
        assert window is not None
        has_own = len(call.inputs["view"]) > 0
        past = self._own(call, window) if has_own else self._of_session(call)
        # A narrower window than that of the session: its newest frames, as if they were the request's own.
        start = window.start(len(past.latents))
        past = past.from_frame(start) if start else past
        from_history = not has_own and not start
        return NodeResult(
            {
                "context": past.latents,
                "past_actions": past.actions,
                "past_states": past.states,
                "pose": past.pose,
                "cameras": past.cameras,
                "from_history": torch.tensor(from_history),
                "num_cached": torch.tensor(len(past.actions) if from_history else 0),
            }
        )

    def _own(self, call: NodeCall, window: Window) -> Past:
        latents, state = call.inputs["view"], call.inputs["state"]
        num_frames = len(latents)
        if state is None:
            raise InvalidArgument("tensor 'state' is missing, expected the pose [7] at the last context frame")
        self._check_num_frames(num_frames, call.params["rollout_horizon"], window)
        actions = _past_actions(call, num_frames)
        cameras = cameras_of(call, num_frames, self._config)
        return Past(latents, actions, _past_states(call, num_frames, actions), canonical_pose(state), cameras)

    def _check_num_frames(self, num_frames: int, horizon: int, window: Window) -> None:
        if num_frames > window.size:
            raise InvalidArgument(
                f"there are {num_frames} context frames, expected at most context_window = {window.size}: give the "
                "newest, or a larger window"
            )
        most, num_last = self._config.max_frames, num_frames + horizon - 1
        if num_last > most and window.size == most:
            raise InvalidArgument(
                f"{num_frames} context frames and rollout_horizon {horizon} need {num_last} frames, this model takes "
                f"{most}: imagine fewer steps, or let the frames slide with a context_window below {most}"
            )

    @staticmethod
    def _of_session(call: NodeCall) -> Past:
        for name in OF_CONTEXT:
            if call.inputs.get(name) is not None:
                raise InvalidArgument(f"tensor {name!r} is given without frames, but it says something about them")
        latents, actions, states, cameras = (call.inputs[name] for name in HISTORY)
        if latents is None:
            raise FailedPrecondition(
                "there is no context: give frames or context_latents with the request, or `observe` first, in a session"
            )
        return Past(latents, actions, states[:-1], canonical_pose(states[-1]), cameras)


class Extend(OneByOne):
    """The session's history with one more frame.

    view [1, P, D], state [7], executed_action [7] -> history_latents [T, P, D], history_actions [T-1, 7],
    history_states [T, 7], history_cameras [T, 6] or [0, 6]. The frames before the newest belong into the session's
    sequence, where num_cached of them are; where the window slides they all go there anew.
    """

    def __init__(self, config: PredictorConfig) -> None:
        self._config = config

    def run_one(self, call: NodeCall) -> NodeResult:
        window = window_of(call.params)
        assert window is not None
        history = self._extended(call)
        num_frames = len(history[0])
        start = window.start(num_frames)
        outputs = {name: tensor[start:] for name, tensor in zip(HISTORY, history, strict=True)}
        outputs["num_frames"] = torch.tensor(num_frames - start)
        outputs["from_history"] = torch.tensor(True)
        outputs["num_cached"] = torch.tensor(0 if start else max(0, num_frames - 2))
        return NodeResult(outputs)

    def _extended(self, call: NodeCall) -> tuple[torch.Tensor, ...]:
        state, action = call.inputs["state"], call.inputs["executed_action"]
        newest = (call.inputs["view"], state[None], cameras_of(call, 1, self._config))
        latents, actions, states, cameras = (call.inputs[name] for name in HISTORY)
        if latents is None:
            if action is not None:
                raise InvalidArgument(
                    "executed_action is given with the first observation of the session, before which nothing was "
                    "executed: leave it out"
                )
            return newest[0], state.new_zeros(0, 7), newest[1], newest[2]
        if action is None:
            raise InvalidArgument(
                "tensor 'executed_action' is missing, expected the action [7] that was executed since the observation "
                "before"
            )
        grown = (torch.cat(pair) for pair in zip((latents, states, cameras), newest, strict=True))
        all_latents, all_states, all_cameras = grown
        return all_latents, torch.cat([actions, action[None]]), all_states, all_cameras


class Segment(NamedTuple):
    """Frames `first` up to `num_past` of the past, as one sequence; `num_cached` of them are in it already."""

    label: Hashable
    first: int
    num_cached: int
    num_past: int

    @property
    def new_frames(self) -> slice:
        return slice(self.first + self.num_cached, self.num_past)

    @property
    def num_new(self) -> int:
        return self.num_past - self.first - self.num_cached


class Remember:
    """The frames of the past into the cache, one block for each, which are the items of a call. Nothing to do where
    they are there.

    Where the window will slide on the way, what it then shows of the past goes there too, at the positions that it will
    have, for all imagined sequences to share. context [T, P, D], past_actions [T-1, 7], past_states [T-1 or more, 7].
    """

    def __init__(self, predictor: ActionPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return max(1, sum(segment.num_new for segment in _segments(call)))

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        steps, frame_tokens = [], self._predictor.config.frame_tokens
        for segment in _segments_of_part(call):
            table = call.sequences.get(segment.label)
            if table.length < segment.num_cached * frame_tokens:
                raise Unavailable("what the cache had of the session's history is lost: start the session anew")
            table.truncate(segment.num_cached * frame_tokens)
            if segment.num_new:
                num_tokens = segment.num_new * frame_tokens
                steps.append(AttentionStep(table, num_tokens, StepKind.BLOCK_APPEND, frame_tokens))
        return steps

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        new = [(call, segment.new_frames) for call in calls for segment in _segments_of_part(call) if segment.num_new]
        if new:
            latents, actions, states = (
                torch.cat([call.inputs[name][frames] for call, frames in new]).to(self._dtype)
                for name in ("context", "past_actions", "past_states")
            )
            cameras = None
            if self._predictor.config.use_extrinsics:
                cameras = torch.cat([call.inputs["cameras"][frames] for call, frames in new]).to(self._dtype)
            self._predictor.step(latents, actions, states, attention, cameras, read=())
        return [self._result(call) for call in calls]

    @staticmethod
    def _result(call: NodeCall) -> NodeResult:
        """The cache has all the progress of a part."""
        return NodeResult(
            {"num_remembered": torch.tensor(len(call.inputs["past_actions"]))} if call.is_last_part else {}
        )


def _segments(call: NodeCall) -> list[Segment]:
    label, num_cached, num_past = past_label(call), int(call.inputs["num_cached"]), len(call.inputs["past_actions"])
    if num_past == 0:  # a session's sequence may have to be emptied
        return [Segment(label, 0, 0, 0)] if label in call.sequences else []
    segments = [Segment(label, 0, num_cached, num_past)]
    horizon, window = call.params.get("rollout_horizon"), window_of(call.params)
    if horizon is not None and window is not None:
        starts = takewhile(lambda start: start < num_past, window.later_starts(num_past + 1, num_past + horizon))
        segments += [Segment(slid_label(call, start), start, 0, num_past) for start in starts]
    return segments


def _segments_of_part(call: NodeCall) -> list[Segment]:
    """What the part of the call adds: segments as they are once the parts before have run, and up to its end. Those
    that have nothing new go with the first part."""
    part = call.part
    if part is None:
        return _segments(call)
    segments, first = [], 0
    for segment in _segments(call):
        start, stop = max(part.start - first, 0), min(part.stop - first, segment.num_new)
        if start < stop:
            num_cached = segment.num_cached + start
            segments.append(segment._replace(num_cached=num_cached, num_past=segment.first + segment.num_cached + stop))
        elif not segment.num_new and not part.start:
            segments.append(segment)
        first += segment.num_new
    return segments


def past_label(call: NodeCall) -> str:
    """The sequence that has the past of this request."""
    return PAST if call.inputs["from_history"] else OWN_PAST


def slid_label(call: NodeCall, start: int) -> Hashable:
    """The sequence that has the past from frame `start` on, where the window slides to."""
    return (past_label(call), start)


def cameras_of(call: NodeCall, num_frames: int, config: PredictorConfig) -> torch.Tensor:
    """The cameras that come with the request's frames: [T, 6] where the model takes them, else [0, 6].

    Raises: InvalidArgument: there are none, or not one for each frame.
    """
    if not config.use_extrinsics:
        return call.inputs["view"].new_zeros(0, config.extrinsics_dim)
    given: torch.Tensor | None = call.inputs["extrinsics"]
    if given is None or len(given) != num_frames:
        raise InvalidArgument(
            f"there are {0 if given is None else len(given)} extrinsics for {num_frames} frames, expected the camera's "
            "pose [6] at each: this checkpoint takes them"
        )
    return given


def _past_actions(call: NodeCall, num_frames: int) -> torch.Tensor:
    given = call.inputs["context_actions"]
    actions = call.inputs["state"].new_zeros(0, 7) if given is None else given
    if len(actions) != num_frames - 1:
        raise InvalidArgument(
            f"there are {len(actions)} context_actions for {num_frames} context frames, expected {num_frames - 1}: "
            "one between every two frames"
        )
    return actions


def _past_states(call: NodeCall, num_frames: int, actions: torch.Tensor) -> torch.Tensor:
    state, given = call.inputs["state"], call.inputs["context_states"]
    if given is None:
        return retrace(state, actions)
    if len(given) != num_frames:
        raise InvalidArgument(f"there are {len(given)} context_states for {num_frames} context frames")
    if not torch.allclose(given[-1], state, rtol=0.0, atol=POSE_TOLERANCE):
        raise InvalidArgument("the last of context_states differs from state, both are the pose at the last frame")
    return given[:-1]
