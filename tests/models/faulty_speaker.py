"""Orpheus' family whose nodes fail when a request asks for it: `fault` names the node, `fault_at` is its iteration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mstar_rt.model import NodeCall, NodeResources, NodeResult, ParamSpec, ServedModel
from mstar_rt.registry import BUILT_IN_FAMILIES, load_object

FAULTS = (ParamSpec("fault", "str", "", "the node that fails"), ParamSpec("fault_at", "int", 0, "in this iteration"))
FACTORIES: dict[str, str] = {}
"""Of the family's own nodes, by model."""


def declare(name: str, checkpoint: str | None, options: Mapping[str, Any]) -> ServedModel:
    model = load_object(BUILT_IN_FAMILIES["orpheus"])(name, checkpoint, options)
    FACTORIES[name] = model.nodes_factory
    tasks = tuple(dataclasses.replace(task, params=(*task.params, *FAULTS)) for task in model.tasks)
    return dataclasses.replace(model, tasks=tasks, nodes_factory="faulty_speaker:build_nodes")


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    nodes = load_object(FACTORIES[model.name])(model, resources)
    return {name: Failing(name, node) for name, node in nodes.items()}


class Failing:
    """A node, until it is asked to fail."""

    def __init__(self, name: str, node: Any) -> None:
        self._name, self._node = name, node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, calls: Sequence[NodeCall], *attention: Any) -> list[NodeResult]:
        for call in calls:
            if call.params["fault"] == self._name and sum(call.iteration) == call.params["fault_at"]:
                raise RuntimeError("a secret of the model")
        return self._node.run(calls, *attention)
