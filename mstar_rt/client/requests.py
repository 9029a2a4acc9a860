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
    model: str, context: wire.Context, rollout: wire.Rollout, budget_ms: float | None, criticality: str | None
) -> wire.RolloutRequest:
    return wire.RolloutRequest(
        model=arguments.text("model", model),
        options=messages.request_options(budget_ms, criticality),
        context=context,
        rollout=rollout,
    )


def plan(
    model: str,
    context: wire.Context,
    goal: wire.Goal,
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> wire.PlanRequest:
    return wire.PlanRequest(
        model=arguments.text("model", model),
        options=messages.request_options(budget_ms, criticality),
        context=context,
        goal=goal,
        planner=messages.planner(options),
    )


def open_world_model(
    model: str,
    budget_ms: float | None,
    criticality: str | None,
    context_window: int | None,
    window_stride: int | None,
    options: Mapping[str, Any],
) -> wire.OpenWorldModel:
    return wire.OpenWorldModel(
        model=arguments.text("model", model),
        planner=messages.planner(options),
        options=messages.request_options(budget_ms, criticality),
        context_window=arguments.count("context_window", context_window),
        window_stride=arguments.count("window_stride", window_stride),
    )


def observe(context: wire.Context, executed_action: Numbers | None, follows: int | None) -> wire.Observe:
    return wire.Observe(
        context=context,
        executed_action=None if executed_action is None else messages.numbers(executed_action, "executed_action"),
        follows=follows,
    )


def session_plan(
    goal: wire.Goal | None, budget_ms: float | None, criticality: str | None, options: Mapping[str, Any]
) -> wire.SessionPlan:
    return wire.SessionPlan(
        options=messages.request_options(budget_ms, criticality), planner=messages.planner(options), goal=goal
    )


def session_rollout(rollout: wire.Rollout, budget_ms: float | None, criticality: str | None) -> wire.SessionRollout:
    return wire.SessionRollout(options=messages.request_options(budget_ms, criticality), rollout=rollout)


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


def trace(last_s: float | None) -> runtime_pb2.TraceRequest:
    return runtime_pb2.TraceRequest(last_s=None if last_s is None else arguments.waiting_s(last_s, "last_s"))
