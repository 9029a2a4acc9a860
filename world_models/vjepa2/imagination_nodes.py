"""The nodes of V-JEPA 2-AC that imagine: where sequences start, and one more frame of each."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.norms import normalise_latents
from world_models.planning.cost import goal_distance, has_distance
from world_models.planning.pose import canonical_pose, integrate, integrate_all
from world_models.planning.tree import num_rows as num_imagined_rows
from world_models.planning.tree import rows_at
from world_models.planning.window import Window, starting_frames, window_of
from world_models.vjepa2.history_nodes import POSE_TOLERANCE, Recall, past_label, slid_label
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.processor import checked_finite

BEYOND_TRAINED = "beyond_trained_positions"


class RolloutStart(Recall):
    """The context, as `Recall` has it; the poses [B, H+1, 7] along the actions [B, H, 7]; and the frame with which each
    sequence starts [B, 1, P, D]."""

    def run_one(self, call: NodeCall) -> NodeResult:
        outputs = super().run_one(call).outputs
        actions, states, pose = call.inputs["actions"], call.inputs["states"], outputs.pop("pose")
        if states is None:
            poses = integrate_all(pose, actions)
        else:
            if not torch.allclose(canonical_pose(states[:, 0]), pose, rtol=0.0, atol=POSE_TOLERANCE):
                raise InvalidArgument("the first of states differs from state, both are the pose at the last frame")
            last = integrate(states[:, -1], actions[:, -1])
            poses = torch.cat([states, last[:, None]], dim=1)
        frames = starting_frames(outputs["context"])
        return NodeResult({**outputs, "poses": poses, "imagined": frames.expand(len(actions), -1, -1, -1)})


@dataclass(slots=True)
class Turn:
    """One step of one imagination.

    There are `num_frames`, of which those from `start` on are seen; `num_past` of them are of the past. Where the
    window slides, the cache has nothing else at the positions that they have now.
    """

    step: int
    is_last: bool
    num_past: int
    num_frames: int
    num_frames_at_end: int
    window: Window
    start: int
    slides: bool
    num_rows: int
    num_branches: int
    """How many rows stand where one stood the step before."""
    stride: int
    """Every so-manyth candidate has a row."""
    rows: range
    """Those of the call's part; all of them, if it has none."""

    @property
    def num_blocks(self) -> int:
        """Frames that go through the predictor, for each row."""
        return self.num_frames - max(self.start, self.num_past) if self.slides else 1


def turn_of(call: NodeCall) -> Turn:
    """What `call` is at."""
    step, params = call.iteration[-1], call.params
    horizon, window = params["rollout_horizon"], window_of(params)
    assert window is not None
    num_past, num_candidates = int(call.inputs["num_remembered"]), call.inputs["actions"].shape[0]
    branching = params.get("tree_branching", ())
    num_rows = rows_at(step, num_candidates, branching)
    num_frames = num_past + 1 + step
    return Turn(
        step=step,
        is_last=step + 1 == horizon,
        num_past=num_past,
        num_frames=num_frames,
        num_frames_at_end=num_past + horizon,
        window=window,
        start=window.start(num_frames),
        slides=step > 0 and window.slides_at(num_frames),
        num_rows=num_rows,
        num_branches=num_rows // rows_at(step - 1, num_candidates, branching) if step and branching else 1,
        stride=num_candidates // num_rows,
        rows=call.part or range(num_rows),
    )


class Imagined(NamedTuple):
    """What the parts of a step have given so far: latents [N, P, D], of which the first rows are there, and distances
    part by part."""

    latents: torch.Tensor
    distances: list[torch.Tensor]


class Predict:
    """One more frame of every imagined sequence of every call; calls may stand at different steps.

    Step h reads action h at pose h of each row, and gives the latents after it, normalised: of N rows, or of fewer
    where candidates share their first actions. The last step leaves nothing in the cache, as nobody would read it.
    Outputs that the request does not ask for are empty. Rows do not see one another: they are the items of a call.
    """

    def __init__(self, predictor: ActionPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return rows_at(call.iteration[-1], len(call.inputs["actions"]), call.params.get("tree_branching", ()))

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        turn, frame_tokens = turn_of(call), self._predictor.config.frame_tokens
        if turn.step == 0 and turn.rows.start == 0:
            _check_room(call, turn)
        tables, num_blocks = self._tables(call, turn), turn.num_blocks
        if num_blocks > 1:
            kind = StepKind.BLOCK_APPEND
            return [AttentionStep(table, num_blocks * frame_tokens, kind, frame_tokens) for table in tables]
        kind = StepKind.TRANSIENT_BLOCK if turn.is_last else StepKind.BLOCK_APPEND
        return [AttentionStep(table, frame_tokens, kind) for table in tables]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        turns = [turn_of(call) for call in calls]
        blocks = [_new_blocks(call, turn) for call, turn in zip(calls, turns, strict=True)]
        latents, actions, poses = (_joined([block[i] for block in blocks]).to(self._dtype) for i in range(3))
        cameras = None
        if self._predictor.config.use_extrinsics:
            cameras = _joined([_cameras(call, turn) for call, turn in zip(calls, turns, strict=True)]).to(self._dtype)
        raw = self._predictor.step(latents, actions, poses, attention, cameras, read=_read(turns))
        normalised = checked_finite(normalise_latents(raw.float()), "the predictor")
        latent = normalised.split([len(turn.rows) for turn in turns]) if len(turns) > 1 else (normalised,)
        return [self._result(call, turn, rows) for call, turn, rows in zip(calls, turns, latent, strict=True)]

    def _result(self, call: NodeCall, turn: Turn, rows: torch.Tensor) -> NodeResult:
        distance = _distance(call, turn, rows)
        if call.part is None:
            return self._whole(call, turn, rows, distance)
        latents, distances = call.progress or (rows.new_empty(turn.num_rows, *rows.shape[1:]), [])
        latents[turn.rows.start : turn.rows.stop] = rows
        if not call.is_last_part:
            return NodeResult({}, progress=Imagined(latents, [*distances, distance]))
        return self._whole(call, turn, latents, torch.cat([*distances, distance]))

    def _whole(self, call: NodeCall, turn: Turn, latent: torch.Tensor, distance: torch.Tensor) -> NodeResult:
        output = call.params.get("output")
        is_shown = output == "latents" or (output == "last_latent" and turn.is_last)
        is_beyond = turn.num_frames - turn.start > self._predictor.config.trained_frames
        outputs = {
            "imagined": _carried(call, turn, latent),
            "latent": latent if is_shown else latent[:0],
            "pose": _at_step(call.inputs["poses"], turn, turn.step + 1),
            "goal_distance": distance,
        }
        return NodeResult(outputs, leave=turn.is_last, flags=(BEYOND_TRAINED,) if is_beyond else ())

    # --- sequences ---------------------------------------------------------------------------------------------------

    def _tables(self, call: NodeCall, turn: Turn) -> list[Any]:
        """One for each row of the part. Twice is the same as once: what is appended to is forked anew or truncated."""
        if turn.slides:
            return self._slid(call, turn)
        if turn.step == 0:
            return self._first(call, turn)
        before = [_label(row // turn.num_branches, turn.step - 1, call) for row in turn.rows]
        if turn.num_branches == 1 or turn.is_last:
            return [call.sequences.get(label) for label in before]
        return [
            call.sequences.fork(label, _label(row, turn.step, call))
            for row, label in zip(turn.rows, before, strict=True)
        ]

    def _first(self, call: NodeCall, turn: Turn) -> list[Any]:
        """Sequences that hold the past and nothing else; what an earlier search iteration left is given up."""
        sequences, past, has_past = call.sequences, past_label(call), turn.num_past > 0
        if turn.rows.start == 0:
            _release_others(call, range(turn.num_rows))
        if turn.is_last:
            return [sequences.get(past)] * len(turn.rows)
        tables = []
        for row in turn.rows:
            if has_past:
                tables.append(sequences.fork(past, row))
            else:
                tables.append(sequences.get(row))
                tables[-1].truncate(0)
        return tables

    def _slid(self, call: NodeCall, turn: Turn) -> list[Any]:
        """Sequences that hold what is seen of the past, at its new positions, and nothing else; those from which the
        rows of a tree came are given up."""
        sequences = call.sequences
        if turn.rows.start == 0:
            _release_others(call, [_label(row, turn.step, call) for row in range(turn.num_rows)])
        labels = [_label(row, turn.step, call) for row in turn.rows]
        if turn.start < turn.num_past:
            past = slid_label(call, turn.start)
            return [sequences.fork(past, label) for label in labels]
        tables = [sequences.get(label) for label in labels]
        for table in tables:
            table.truncate(0)
        return tables


def _check_room(call: NodeCall, turn: Turn) -> None:
    """Refuses at once what would run out of pages on the way whoever else gives theirs back.

    Where the window slides rows hold fewer frames, which is left to the cache to find out.
    Raises: InvalidArgument: the request needs more pages than there are.
    """
    if turn.window.start(turn.num_frames_at_end):
        return
    horizon, num_candidates = call.params["rollout_horizon"], call.inputs["actions"].shape[0]
    num_imagined = num_imagined_rows(horizon - 1, num_candidates, call.params.get("tree_branching", ()))
    num_frames, num_pages = turn.num_past + num_imagined, call.sequences.pool.num_pages
    if num_frames > num_pages:
        raise InvalidArgument(
            f"{num_candidates} sequences of {horizon} steps keep {num_frames} frames in the cache, this worker has "
            f"pages for {num_pages}: ask for fewer samples or a shorter horizon, or raise workers.kv_memory_mb"
        )


def _release_others(call: NodeCall, labels: Collection[Hashable]) -> None:
    """Give up the imagined sequences that are not among these."""
    kept = frozenset(labels)
    for label in [label for label in call.sequences if label not in kept]:
        if isinstance(label[0] if isinstance(label, tuple) else label, int):
            call.sequences.release(label)


def _label(row: int, step: int, call: NodeCall) -> int | tuple[int, int]:
    """The sequence of a row at a step: rows keep theirs as long as no row branches."""
    branching = call.params.get("tree_branching", ())
    if not branching or call.inputs["actions"].shape[0] == 1:
        return row
    depth = sum(branches > 1 for branches in branching[1 : step + 1])
    return (depth, row) if depth else row


# --- what goes into the predictor ------------------------------------------------------------------------------------


def _new_blocks(call: NodeCall, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents [M, P, D], actions [M, 7] and poses [M, 7] of the frames that are new to the cache, row by row."""
    step, num_blocks = turn.step, turn.num_blocks
    latents, actions, poses = (call.inputs[name] for name in ("imagined", "actions", "poses"))
    latents = latents[:, -num_blocks:]
    if turn.num_branches > 1:
        latents = latents[torch.arange(turn.rows.start, turn.rows.stop, device=latents.device) // turn.num_branches]
    elif call.part is not None:
        latents = latents[turn.rows.start : turn.rows.stop]
    if call.part is not None:
        candidates = slice(turn.rows.start * turn.stride, turn.rows.stop * turn.stride)
        actions, poses = actions[candidates], poses[candidates]
    if num_blocks == 1:
        return latents[:, 0], _at_step(actions, turn, step), _at_step(poses, turn, step)
    steps = slice(step + 1 - num_blocks, step + 1)
    actions, poses = (of_rows[:: turn.stride, steps].flatten(0, 1) for of_rows in (actions, poses))
    return latents.flatten(0, 1), actions, poses


def _at_step(values: torch.Tensor, turn: Turn, step: int) -> torch.Tensor:
    """Of [candidates, steps, 7] those of one step, [N, 7]."""
    return (values if turn.stride == 1 else values[:: turn.stride]).select(1, step)


def _cameras(call: NodeCall, turn: Turn) -> torch.Tensor:
    """[M, 6] for the same blocks; the camera stays where it was at the newest real frame."""
    return call.inputs["cameras"][-1].expand(len(turn.rows) * turn.num_blocks, -1)


def _read(turns: Sequence[Turn]) -> list[int] | None:
    """The blocks whose successors are wanted: the newest of each row."""
    if all(turn.num_blocks == 1 for turn in turns):
        return None
    read: list[int] = []
    first = 0
    for turn in turns:
        end = first + len(turn.rows) * turn.num_blocks
        read += range(first + turn.num_blocks - 1, end, turn.num_blocks)
        first = end
    return read


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


# --- what comes out --------------------------------------------------------------------------------------------------


def _carried(call: NodeCall, turn: Turn, latent: torch.Tensor) -> torch.Tensor:
    """The newest frames of each row, as many as later steps need [N, K, P, D]."""
    num_needed = min(turn.window.num_needed(turn.num_frames + 1, turn.num_frames_at_end), turn.step + 2)
    if num_needed == 1 or turn.is_last:
        return latent[:, None]
    earlier = call.inputs["imagined"][:, 1 - num_needed :]
    if turn.num_branches > 1:
        earlier = earlier.repeat_interleave(turn.num_branches, dim=0)
    return torch.cat([earlier, latent[:, None]], dim=1)


def _distance(call: NodeCall, turn: Turn, latent: torch.Tensor) -> torch.Tensor:
    """[N] to the goal, where the request wants it after this step: a rollout after each one or never."""
    goal, params = call.inputs["goal"], call.params
    output = params.get("output")
    mode = int(call.inputs["goal_mode"])
    is_wanted = (
        has_distance(mode, turn.step, params["rollout_horizon"]) if output is None else output == "goal_distance"
    )
    if not is_wanted:
        return latent.new_empty(0)
    return goal_distance(latent, goal, call.inputs["goal_weights"], mode, turn.step, params["cost"])
