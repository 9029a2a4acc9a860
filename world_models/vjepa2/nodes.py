"""What the nodes of V-JEPA 2-AC compute. Latents are float32 between nodes, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

from mstar_rt.errors import CheckpointError, ConfigError, FailedPrecondition, InvalidArgument
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.norms import normalise_latents
from world_models.planning.nodes import SearchNode, planning_nodes
from world_models.planning.pose import canonical_pose, integrate, integrate_all, retrace
from world_models.vjepa2.checkpoint import Networks, load_networks, random_networks
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.model import config_for
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.processor import normalise_frames

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ENCODER_BATCH = 64
"""Frames in one forward: beyond this nothing is gained and memory grows."""

PAST = "past"
POSE_TOLERANCE = 1e-4
BEYOND_TRAINED = "beyond_trained_positions"


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; load the weights if one of them has any.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    asked = resources.nodes or frozenset(node.name for node in model.graph.nodes)
    code: dict[str, Any] = {"rollout_start": RolloutStart(), **planning_nodes(resources.device)}
    makers = {name: make for name, make in (ENCODER_NODES | PREDICTOR_NODES).items() if name in asked}
    if makers:
        config = config_for(model.checkpoint, model.options)
        networks = _networks(model, config, resources.device, DTYPES[resources.dtype])
        for name, make in makers.items():
            code[name] = make(networks.encoder if name in ENCODER_NODES else networks.predictor)
    return {name: node for name, node in code.items() if name in asked}


def _networks(model: ServedModel, config: VJepa2Config, device: str, dtype: torch.dtype) -> Networks:
    seed = model.options.get("random_seed")
    if seed is not None:
        return random_networks(config, seed, device=device, dtype=dtype)
    if not model.checkpoint:
        raise CheckpointError(f"model {model.name!r} has no checkpoint, name its weights file in the deployment")
    return load_networks(config, Path(model.checkpoint), device=device, dtype=dtype)


def checked_finite(latents: torch.Tensor, network: str) -> torch.Tensor:
    """`latents` themselves. NaN that got this far would come out as a plan with a cost of NaN.

    Raises: FailedPrecondition: they hold NaN or infinity.
    """
    if not torch.isfinite(latents).all():
        raise FailedPrecondition(
            f"{network} gives NaN or infinity; check its weights, and that the inputs are in range"
        )
    return latents


class Encode:
    """frames [T, H, W, 3] (uint8, or float32 as normalised) -> latents [T, P, D]; those of all calls make one batch."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._dtype = encoder.norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        parts = self.encode([call.inputs["frames"] for call in calls])
        return [NodeResult({"latents": part}) for part in parts]

    def encode(self, frames: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Latents of each sequence of frames."""
        if not frames:
            return []
        batches = torch.cat([normalise_frames(part, self._dtype) for part in frames]).split(ENCODER_BATCH)
        latents = torch.cat([self._encoder.encode_frames(batch).float() for batch in batches])
        return list(checked_finite(latents, "the encoder").split([len(part) for part in frames]))


class Observe(Encode):
    """The context [T, P, D], from frames or from latents that the client has already."""

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        encoded = iter(self.encode([call.inputs["frames"] for call in calls if call.inputs["frames"] is not None]))
        contexts = []
        for call in calls:
            context = next(encoded) if call.inputs["frames"] is not None else call.inputs["context_latents"]
            if context is None:
                raise InvalidArgument("there are neither frames nor context_latents, expected one of them")
            contexts.append(context)
        return [NodeResult({"context": context}) for context in contexts]


class ObserveGoal(Encode):
    """The goal [P, D]: from a frame, from given latents, or what the session keeps."""

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        frames = [call.inputs["goal_frames"] for call in calls if call.inputs["goal_frames"] is not None]
        encoded = iter(self.encode(frames))
        goals = []
        for call in calls:
            goal = next(encoded)[0] if call.inputs["goal_frames"] is not None else call.inputs["goal_latents"]
            if goal is None:
                raise FailedPrecondition("there is no goal yet: give goal_frames or goal_latents, or set_goal first")
            goals.append(goal)
        return [NodeResult({"goal_latents": goal}) for goal in goals]


class Recall(SearchNode):
    """Checks the context as a whole, and works out the poses of its past.

    context [T, P, D], state [7] -> past_actions and past_states [T-1, 7], pose [7].
    """

    def __init__(self, predictor: ActionPredictor) -> None:
        self._max_frames = predictor.config.max_frames

    def run_one(self, call: NodeCall) -> NodeResult:
        num_frames, horizon = len(call.inputs["context"]), call.params["rollout_horizon"]
        if num_frames + horizon - 1 > self._max_frames:
            raise InvalidArgument(
                f"{num_frames} context frames and rollout_horizon {horizon} need {num_frames + horizon - 1} frames, "
                f"this model takes {self._max_frames}"
            )
        state, actions = call.inputs["state"], self._past_actions(call, num_frames)
        states = self._past_states(call, num_frames, actions)
        return NodeResult({"past_actions": actions, "past_states": states, "pose": canonical_pose(state)})

    @staticmethod
    def _past_actions(call: NodeCall, num_frames: int) -> torch.Tensor:
        given = call.inputs["context_actions"]
        actions = call.inputs["state"].new_zeros(0, 7) if given is None else given
        if len(actions) != num_frames - 1:
            raise InvalidArgument(
                f"there are {len(actions)} context_actions for {num_frames} context frames, expected {num_frames - 1}: "
                "one between every two frames"
            )
        return actions

    @staticmethod
    def _past_states(call: NodeCall, num_frames: int, actions: torch.Tensor) -> torch.Tensor:
        state, given = call.inputs["state"], call.inputs["context_states"]
        if given is None:
            return retrace(state, actions)
        if len(given) != num_frames:
            raise InvalidArgument(f"there are {len(given)} context_states for {num_frames} context frames")
        if not torch.allclose(given[-1], state, rtol=0.0, atol=POSE_TOLERANCE):
            raise InvalidArgument("the last of context_states differs from state, both are the pose at the last frame")
        return given[:-1]


class RolloutStart(SearchNode):
    """actions [B, H, 7] -> poses [B, H+1, 7] along them, and the last context frame for each sequence [B, P, D]."""

    def run_one(self, call: NodeCall) -> NodeResult:
        actions, states, pose = call.inputs["actions"], call.inputs["states"], call.inputs["pose"]
        if states is None:
            poses = integrate_all(pose, actions)
        else:
            if not torch.allclose(canonical_pose(states[:, 0]), pose, rtol=0.0, atol=POSE_TOLERANCE):
                raise InvalidArgument("the first of states differs from state, both are the pose at the last frame")
            last = integrate(states[:, -1], actions[:, -1])
            poses = torch.cat([states, last[:, None]], dim=1)
        return NodeResult({"poses": poses, "latent": call.inputs["context"][-1].expand(len(actions), -1, -1)})


class Remember:
    """One frame of the past into the cache of the request; iteration t takes frame t. Nothing to do for one frame."""

    def __init__(self, predictor: ActionPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        if not len(call.inputs["past_actions"]):
            return []
        frame_tokens = self._predictor.config.frame_tokens
        return [AttentionStep(call.sequences.get(PAST), frame_tokens, StepKind.BLOCK_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        with_past = [call for call in calls if len(call.inputs["past_actions"])]
        if with_past:
            latents, actions, states = (
                torch.stack([call.inputs[name][call.iteration[-1]] for call in with_past]).to(self._dtype)
                for name in ("context", "past_actions", "past_states")
            )
            self._predictor.step(latents, actions, states, attention)
        return [self._result(call) for call in calls]

    @staticmethod
    def _result(call: NodeCall) -> NodeResult:
        num_past, num_done = len(call.inputs["past_actions"]), call.iteration[-1] + 1
        return NodeResult({"num_remembered": torch.tensor(num_past)}, leave=num_done >= num_past)


class Predict:
    """One more frame of every imagined sequence of every call; calls may stand at different steps.

    latent [N, P, D], actions [N, H, 7], poses [N, H+1, 7] -> latent [N, P, D] normalised, pose [N, 7] after the step.
    Step h reads action h at pose h. The last step leaves nothing in the cache, as nobody would read it.
    """

    def __init__(self, predictor: ActionPredictor) -> None:
        self._predictor = predictor
        self._dtype = predictor.predictor_norm.weight.dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        step, frame_tokens = call.iteration[-1], self._predictor.config.frame_tokens
        kind = StepKind.TRANSIENT_BLOCK if _is_last(call) else StepKind.BLOCK_APPEND
        num_sequences = len(call.inputs["latent"])
        if step == 0:
            tables = self._fresh_tables(call, num_sequences)
        else:
            tables = [call.sequences.get(index) for index in range(num_sequences)]
        return [AttentionStep(table, frame_tokens, kind) for table in tables]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        latents = torch.cat([call.inputs["latent"] for call in calls]).to(self._dtype)
        actions = torch.cat([call.inputs["actions"][:, call.iteration[-1]] for call in calls]).to(self._dtype)
        poses = torch.cat([call.inputs["poses"][:, call.iteration[-1]] for call in calls]).to(self._dtype)
        raw = self._predictor.step(latents, actions, poses, attention)
        normalised = checked_finite(normalise_latents(raw.float()), "the predictor")
        parts = normalised.split([len(call.inputs["latent"]) for call in calls])
        return [self._result(call, part) for call, part in zip(calls, parts, strict=True)]

    def _result(self, call: NodeCall, latent: torch.Tensor) -> NodeResult:
        step = call.iteration[-1]
        position = int(call.inputs["num_remembered"]) + step
        flags = (BEYOND_TRAINED,) if position >= self._predictor.config.trained_frames else ()
        outputs = {"latent": latent, "pose": call.inputs["poses"][:, step + 1]}
        return NodeResult(outputs, leave=_is_last(call), flags=flags)

    def _fresh_tables(self, call: NodeCall, num_sequences: int) -> list[Any]:
        """Sequences that hold the past and nothing else; what an earlier search iteration appended is dropped."""
        length = int(call.inputs["num_remembered"]) * self._predictor.config.frame_tokens
        tables = []
        for index in range(num_sequences):
            table = call.sequences.get(index)
            if length and not table.length:
                table = call.sequences.fork(PAST, index)
            table.truncate(length)
            tables.append(table)
        return tables


def _is_last(call: NodeCall) -> bool:
    return bool(call.iteration[-1] + 1 == call.params["rollout_horizon"])


ENCODER_NODES: dict[str, Callable[[Any], Any]] = {"encode": Encode, "observe": Observe, "observe_goal": ObserveGoal}
PREDICTOR_NODES: dict[str, Callable[[Any], Any]] = {"recall": Recall, "remember": Remember, "predict": Predict}
