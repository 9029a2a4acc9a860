"""Wire messages to what a task takes: named tensors and parameters, not yet checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.descriptor import EnumDescriptor

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Playback
from mstar_rt.model import ParamValue
from mstar_rt.protos import request_pb2, world_model_pb2
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.server.images import decode_frames

CONTEXT_TENSORS = {"actions": "context_actions", "states": "context_states", "extrinsics": "extrinsics"}


@dataclass
class TaskInput:
    """What a client gives to one task. `batched`: actions came as [B, H, A], so answers keep the
    dimension B. `playback`: somebody listens to an output while it is made. `num_together`: see Submit.
    """

    task: str
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    params: dict[str, ParamValue] = field(default_factory=dict)
    batched: bool = True
    playback: Playback | None = None
    num_together: int = 1


async def encode_input(request: world_model_pb2.EncodeRequest) -> TaskInput:
    frames = await decode_frames(request.frames, "frames")
    given = TaskInput("encode", {"frames": frames})
    add_model_options(given.params, request.model_options)
    return given


async def context_tensors(context: world_model_pb2.Context) -> dict[str, np.ndarray]:
    """Raises:  InvalidArgument: neither frames nor latents, or as many actions as do not fit the frames."""
    view = context.WhichOneof("view")
    if view is None:
        raise InvalidArgument("the context is empty, expected camera frames or latents")
    if view == "frames":
        tensors = {"frames": await decode_frames(context.frames, "frames")}
    else:
        tensors = {"context_latents": array_from_tensor(context.latents, "context_latents")}
    num_frames = next(iter(tensors.values())).shape[:1]
    if context.HasField("state"):
        tensors["state"] = array_from_tensor(context.state, "state")
    for wire_name, name in CONTEXT_TENSORS.items():
        if context.HasField(wire_name):
            tensors[name] = array_from_tensor(getattr(context, wire_name), name)
    actions = tensors.get("context_actions")
    if actions is not None and num_frames and actions.shape[:1] != (num_frames[0] - 1,):
        raise InvalidArgument(
            f"tensor 'context_actions' has shape {list(actions.shape)}, expected one action between every two of "
            f"{num_frames[0]} frames: [{num_frames[0] - 1}, A] (leave it unset for one frame)"
        )
    return tensors


async def goal_tensors(goal: world_model_pb2.Goal) -> dict[str, np.ndarray]:
    """Goals are [G, ...]; latents [P, D] of one goal become G = 1."""
    view = goal.WhichOneof("view")
    if view is None:
        raise InvalidArgument("the goal is empty, expected its frames or their latents")
    if view == "frames":
        tensors = {"goal_frames": await decode_frames(goal.frames, "goal_frames")}
    else:
        latents = array_from_tensor(goal.latents, "goal_latents")
        tensors = {"goal_latents": latents[None] if latents.ndim == 2 else latents}
    if goal.HasField("weights"):
        tensors["goal_weights"] = array_from_tensor(goal.weights, "goal_weights")
    return tensors


async def set_goal_input(goal: world_model_pb2.Goal) -> TaskInput:
    return TaskInput("set_goal", await goal_tensors(goal), goal_params(goal))


async def observe_input(observe: world_model_pb2.Observe) -> TaskInput:
    """One more frame of a session's history."""
    for field_name in ("actions", "states"):
        if observe.context.HasField(field_name):
            raise InvalidArgument(
                f"the observation has {field_name} of past frames, which the session keeps itself: "
                "give the newest frame, its state and executed_action"
            )
    given = TaskInput("observe", await context_tensors(observe.context))
    if observe.HasField("executed_action"):
        given.tensors["executed_action"] = array_from_tensor(observe.executed_action, "executed_action")
    return given


def goal_params(goal: world_model_pb2.Goal) -> dict[str, ParamValue]:
    if goal.use == world_model_pb2.Goal.USE_UNSPECIFIED:
        return {}
    return {"goal_use": _enum_text(world_model_pb2.Goal.Use.DESCRIPTOR, goal.use)}


async def rollout_input(rollout: world_model_pb2.Rollout, context: Mapping[str, np.ndarray]) -> TaskInput:
    """The task takes [B, H, A]; plain [H, A] becomes B = 1 here, and the answer loses it again."""
    if not rollout.HasField("actions"):
        raise InvalidArgument("the rollout has no actions, expected float32 [H, A] or [B, H, A]")
    tensors = dict(context)
    actions = array_from_tensor(rollout.actions, "actions")
    batched = actions.ndim != 2
    tensors["actions"] = actions if batched else actions[None]
    if rollout.HasField("states"):
        states = array_from_tensor(rollout.states, "states")
        tensors["states"] = states if batched or states.ndim != 2 else states[None]
    given = TaskInput("rollout", tensors, batched=batched)
    if rollout.output != world_model_pb2.Rollout.OUTPUT_UNSPECIFIED:
        given.params["output"] = _enum_text(world_model_pb2.Rollout.Output.DESCRIPTOR, rollout.output)
    if rollout.HasField("goal"):
        if not wants_distance(rollout):
            raise InvalidArgument(
                "the rollout has a goal, which only output goal_distance compares it with: "
                "ask for that output, or leave the goal unset"
            )
        given.tensors |= await goal_tensors(rollout.goal)
        given.params |= goal_params(rollout.goal)
    add_model_options(given.params, rollout.model_options)
    return given


def wants_distance(rollout: world_model_pb2.Rollout) -> bool:
    return rollout.output == world_model_pb2.Rollout.OUTPUT_GOAL_DISTANCE


def planner_input(planner: world_model_pb2.PlannerOptions) -> TaskInput:
    """The options that are set, under the names by which models declare them; tensors among them (bounds,
    first mean).
    """
    given = TaskInput("plan")
    for descriptor, value in planner.ListFields():
        name = descriptor.name
        if name == "pinned":
            _add_pins(given.params, planner)
        elif name == "model_options":
            add_model_options(given.params, planner.model_options)
        elif name == "tree_branching":
            given.params[name] = tuple(float(branches) for branches in value)
        elif descriptor.enum_type is not None:
            given.params[name] = _enum_text(descriptor.enum_type, value)
        elif descriptor.message_type is not None:
            given.tensors[name] = array_from_tensor(value, name)
        else:
            given.params[name] = value
    return given


def add_model_options(params: dict[str, ParamValue], options: Mapping[str, request_pb2.OptionValue]) -> None:
    for name, option in options.items():
        kind = option.WhichOneof("kind")
        if kind is None:
            raise InvalidArgument(f"option {name!r} has no value")
        _add(params, name, tuple(option.numbers.values) if kind == "numbers" else getattr(option, kind))


def _add(params: dict[str, ParamValue], name: str, value: ParamValue) -> None:
    if name in params:
        raise InvalidArgument(f"option {name!r} is given twice: as a field of the request and in model_options")
    params[name] = value


def _add_pins(params: dict[str, ParamValue], planner: world_model_pb2.PlannerOptions) -> None:
    dimensions = [pin.dimension for pin in planner.pinned]
    for dimension in dimensions:
        if dimensions.count(dimension) > 1:
            raise InvalidArgument(f"dimension {dimension} is pinned more than once")
    params["pinned_dims"] = tuple(float(dimension) for dimension in dimensions)
    params["pinned_values"] = tuple(pin.value for pin in planner.pinned)


def _enum_text(enum: EnumDescriptor, number: int) -> str:
    """COST_L1 of enum Cost -> "l1", as models declare it."""
    known = enum.values_by_number.get(number)
    if known is None:
        raise InvalidArgument(f"{enum.name} {number} is not known, expected {', '.join(enum.values_by_name)}")
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return str(known.name.removeprefix(prefix).lower())
