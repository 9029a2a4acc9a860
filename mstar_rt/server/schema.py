"""A model's declaration as the wire describes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from mstar_rt.graph import WalkGraph
from mstar_rt.graph.drawing import draw
from mstar_rt.message import ServingState
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.node_place import NodePlace
from mstar_rt.protos import request_pb2
from mstar_rt.protos import runtime_pb2 as wire
from mstar_rt.protos.arrays import wire_dtype
from mstar_rt.server.control.schema_check import policy_schema
from mstar_rt.server.task_runner import CRITICALITY_NAMES


def summarize(model: ServedModel, state: ServingState) -> wire.ModelSummary:
    return wire.ModelSummary(
        name=model.name,
        family=model.family,
        doc=model.doc,
        serving=state.serving,
        reason="" if state.serving else state.reason,
        tasks=[task.name for task in model.tasks],
    )


def describe(
    model: ServedModel, state: ServingState, walk: str | None, places: Sequence[NodePlace]
) -> wire.DescribeModelResponse:
    """Raises:  NotFound: the model has no walk of that name."""
    names = [walk] if walk is not None else [each.name for each in model.graph.walks]
    return wire.DescribeModelResponse(
        summary=summarize(model, state),
        tasks=[_task(task) for task in model.tasks],
        walks=[_drawing(model.graph, name) for name in names],
        facts={name: option_value(value) for name, value in model.facts.items()},
        checkpoint=PurePath(model.checkpoint).name,
        policy=None if model.policy is None else policy_schema(model.policy),
        places=[
            wire.NodePlace(node=place.node, walks=place.walks, ranks=place.ranks, dtype=wire_dtype(place.dtype))
            for place in places
        ],
    )


def option_value(value: Any) -> request_pb2.OptionValue:
    """Text is the last resort, for facts of other types than options have."""
    if isinstance(value, bool):
        return request_pb2.OptionValue(flag=value)
    if isinstance(value, int):
        return request_pb2.OptionValue(integer=value)
    if isinstance(value, float):
        return request_pb2.OptionValue(number=value)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(_is_number(v) for v in value):
        return request_pb2.OptionValue(numbers=request_pb2.NumberList(values=value))
    return request_pb2.OptionValue(text=str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _drawing(graph: WalkGraph, walk: str) -> wire.WalkDrawing:
    return wire.WalkDrawing(walk=walk, text=draw(graph, walk), mermaid=draw(graph, walk, "mermaid"))


def _task(task: TaskSpec) -> wire.TaskSchema:
    criticality = next((number for number, name in CRITICALITY_NAMES.items() if name == task.criticality), None)
    return wire.TaskSchema(
        name=task.name,
        doc=task.doc,
        inputs=[_tensor(spec) for spec in task.inputs],
        outputs=[_tensor(spec) for spec in task.outputs],
        options=[_option(spec) for spec in task.params],
        walks=task.walks,
        criticality=criticality,
    )


def _tensor(spec: TensorSpec) -> wire.TensorSchema:
    return wire.TensorSchema(
        name=spec.name,
        shape=[_dimension(size, dict(spec.max_sizes)) for size in spec.shape],
        dtypes=[wire_dtype(name) for name in spec.dtypes],
        units=spec.units,
        doc=spec.doc,
        optional=spec.optional,
    )


def _dimension(size: int | str, max_sizes: dict[str, int]) -> wire.Dimension:
    if isinstance(size, int):
        return wire.Dimension(size=size)
    return wire.Dimension(symbol=size, max_size=max_sizes.get(size))


def _option(spec: ParamSpec) -> wire.OptionSchema:
    return wire.OptionSchema(
        name=spec.name,
        kind=spec.kind,
        default_value=None if spec.default is None else option_value(spec.default),
        required=spec.default is None and not spec.optional,
        minimum=spec.minimum,
        maximum=spec.maximum,
        choices=spec.choices,
        length=spec.length,
        units=spec.units,
        doc=spec.doc,
    )
