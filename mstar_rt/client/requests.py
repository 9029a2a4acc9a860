"""Requests of the one-call methods, shared by the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.client import arguments, messages
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import runtime_pb2, task_pb2
from mstar_rt.protos import world_model_pb2 as wire


def encode(model: str, frames: Images, budget_ms: float | None, criticality: str | None) -> wire.EncodeRequest:
    options = messages.request_options(budget_ms, criticality)
    return wire.EncodeRequest(model=arguments.text("model", model), options=options, frames=messages.frames(frames))


def rollout(
    model: str,
    frames: Images | None,
    actions: Numbers,
    state: Numbers | None,
    latents: Numbers | None,
    context_actions: Numbers | None,
    context_states: Numbers | None,
    states: Numbers | None,
    budget_ms: float | None,
    criticality: str | None,
    model_options: Mapping[str, Any],
) -> wire.RolloutRequest:
    return wire.RolloutRequest(
        model=arguments.text("model", model),
        options=messages.request_options(budget_ms, criticality),
        context=messages.context(frames, state, latents, context_actions, context_states),
        rollout=messages.rollout(actions, states, model_options),
    )


def plan(
    model: str,
    frames: Images | None,
    goal_frames: Images | None,
    state: Numbers,
    latents: Numbers | None,
    goal_latents: Numbers | None,
    context_actions: Numbers | None,
    context_states: Numbers | None,
    budget_ms: float | None,
    criticality: str | None,
    improvements: bool,
    options: Mapping[str, Any],
) -> wire.PlanRequest:
    return wire.PlanRequest(
        model=arguments.text("model", model),
        options=messages.request_options(budget_ms, criticality),
        context=messages.context(frames, state, latents, context_actions, context_states),
        goal=messages.goal(goal_frames, goal_latents),
        planner=messages.planner(options),
        improvements=improvements,
    )


def session_plan(
    budget_ms: float | None,
    criticality: str | None,
    goal_frames: Images | None,
    improvements: bool,
    options: Mapping[str, Any],
) -> wire.SessionPlan:
    return wire.SessionPlan(
        options=messages.request_options(budget_ms, criticality),
        planner=messages.planner(options),
        goal=None if goal_frames is None else messages.goal(goal_frames, None),
        improvements=improvements,
    )


def observe(
    frames: Images | None,
    state: Numbers | None,
    latents: Numbers | None,
    context_actions: Numbers | None,
    context_states: Numbers | None,
) -> wire.Observe:
    return wire.Observe(context=messages.context(frames, state, latents, context_actions, context_states))


def task(
    message_id: int,
    model: str,
    name: str,
    tensors: Mapping[str, Numbers] | None,
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> task_pb2.TaskRequest:
    if tensors is not None and not isinstance(tensors, Mapping):
        raise InvalidArgument(f"tensors is a {type(tensors).__name__}, expected a mapping from names to arrays")
    named = {arguments.text("the name of a tensor", key): value for key, value in (tensors or {}).items()}
    return task_pb2.TaskRequest(
        message_id=message_id,
        model=arguments.text("model", model),
        task=arguments.text("task", name),
        tensors={key: messages.numbers(value, key) for key, value in named.items()},
        model_options={key: messages.option_value(key, value) for key, value in options.items()},
        options=messages.request_options(budget_ms, criticality),
    )


def describe(model: str, walk: str | None) -> runtime_pb2.DescribeModelRequest:
    return runtime_pb2.DescribeModelRequest(
        model=arguments.text("model", model), walk=None if walk is None else arguments.text("walk", walk)
    )
