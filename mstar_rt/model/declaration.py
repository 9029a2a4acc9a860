"""Whether a `ServedModel` fits together: its tasks with the walks they run, its nodes with its caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mstar_rt.errors import GraphError, nearest
from mstar_rt.model.declared_specs import (
    NODE_DTYPES,
    check_cache,
    check_param,
    check_tensor,
    check_tensors_in_order,
    named_once,
)
from mstar_rt.model.spec import ParamSpec, TensorSpec

if TYPE_CHECKING:
    from mstar_rt.graph import BoundWalk, Loop
    from mstar_rt.model.served import ServedModel, TaskSpec

CRITICALITIES = ("control", "planning", "generation")


def check_declaration(model: ServedModel) -> None:
    """Raises: GraphError: names the model, the task, the walk and the nearest right name."""
    where = f"model {model.name!r}"
    if not model.tasks:
        raise GraphError(f"{where} has no tasks, expected at least one")
    if not isinstance(model.nodes_factory, str) or not all(model.nodes_factory.partition(":")):
        raise GraphError(f"{where} has nodes_factory {model.nodes_factory!r}, expected 'module:function'")
    named_once([task.name for task in model.tasks], "task", where)
    _check_caches(model, where)
    _check_node_outputs(model, where)
    for task in model.tasks:
        _check_known(task.walks, [walk.name for walk in model.graph.walks], f"{where}, task {task.name!r}", "walks")
    walks = {task.name: [model.graph.bound(walk) for walk in task.walks] for task in model.tasks}
    persisted = {name for of_task in walks.values() for walk in of_task for name, _ in walk.persists}
    for task in model.tasks:
        _check_task(task, walks[task.name], persisted, where)


def _check_known(names: Any, known: Iterable[str], where: str, what: str) -> None:
    """`names` are a tuple of some of `known`, at least one."""
    if isinstance(names, str) or not names:
        raise GraphError(f"{where}: its {what} are {names!r}, expected a tuple of at least one name")
    listed = list(known)
    for name in names:
        if name not in listed:
            raise GraphError(f"{where}: its {what} name {name!r}, which does not exist, {nearest(str(name), listed)}")


def _check_caches(model: ServedModel, where: str) -> None:
    used = {node.cache: node.name for node in model.graph.nodes if node.cache is not None}
    for cache, node in used.items():
        if cache not in model.caches:
            raise GraphError(
                f"{where}: node {node!r} attends over cache {cache!r}, which the model does not declare, "
                f"{nearest(cache, model.caches)}"
            )
    for cache, spec in model.caches.items():
        if cache not in used:
            raise GraphError(f"{where}: no node attends over cache {cache!r}, {nearest(cache, used)}")
        check_cache(spec, f"{where}, cache {cache!r}")


def _check_node_outputs(model: ServedModel, where: str) -> None:
    slots = [f"{node.name}.{slot}" for node in model.graph.nodes for slot in node.outputs]
    for name, spec in model.node_outputs.items():
        if name not in slots:
            raise GraphError(f"{where}: node_outputs has {name!r}, which no node gives, {nearest(name, slots)}")
        check_tensor(spec, f"{where}, node output {name!r}", NODE_DTYPES)


def _check_task(task: TaskSpec, walks: list[BoundWalk], persisted: set[str], model: str) -> None:
    where = f"{model}, task {task.name!r}"
    for kind, specs in (("input", task.inputs), ("output", task.outputs), ("parameter", task.params)):
        named_once([spec.name for spec in specs], kind, where)
    for spec in (*task.inputs, *task.outputs):
        check_tensor(spec, f"{where}, tensor {spec.name!r}")
    check_tensors_in_order(task.inputs, where)
    for param in task.params:
        check_param(param, where)
    if task.criticality not in CRITICALITIES:
        raise GraphError(f"{where} has criticality {task.criticality!r}, expected one of {', '.join(CRITICALITIES)}")
    _check_inputs(task, walks, persisted, where)
    _check_outputs(task, walks, where)
    _check_names(task, where)
    for walk in walks:
        for around in walk.loops:
            if isinstance(around.loop.times, str):
                _check_times(task, around.loop, f"{where}: walk {walk.walk.name!r}, loop {around.loop.name!r}")


def _check_inputs(task: TaskSpec, walks: list[BoundWalk], persisted: set[str], where: str) -> None:
    """Everything that is read can be given, and everything that can be given is read."""
    given = {spec.name for spec in task.inputs}
    read = {name: walk.walk.name for walk in walks for name in walk.inputs}
    for name, walk in read.items():
        if name not in given | persisted:
            raise GraphError(
                f"{where}: walk {walk!r} reads {name!r}, which is no input of the task and which no walk of a task "
                f"persists, {nearest(name, given | persisted)}"
            )
    for name in sorted(given - set(read)):
        raise GraphError(f"{where}: no walk of it reads its input {name!r}, {nearest(name, read)}")
    for name, _ in task.session_inputs:
        if name not in read:
            raise GraphError(f"{where}: no walk of it reads its session input {name!r}, {nearest(name, read)}")
        if name not in persisted:
            raise GraphError(
                f"{where}: no walk of a task persists its session input {name!r}, {nearest(name, persisted)}"
            )


def _check_outputs(task: TaskSpec, walks: list[BoundWalk], where: str) -> None:
    listed = [spec.name for spec in task.outputs]
    emitted = {name: walk.walk.name for walk in walks for name, _ in walk.emits}
    for name in listed:
        if name not in emitted:
            raise GraphError(f"{where}: no walk of it emits its output {name!r}, {nearest(name, emitted)}")
    for name, walk in emitted.items():
        if name not in listed:
            raise GraphError(
                f"{where}: walk {walk!r} emits {name!r}, which is no output of the task, {nearest(name, listed)}"
            )


def _check_names(task: TaskSpec, where: str) -> None:
    inputs = [spec.name for spec in task.inputs]
    for what, groups in (("one_of", task.one_of), ("at_most_one", task.at_most_one)):
        for group in groups:
            _check_known(group, inputs, where, f"{what} inputs")
    for name, symbol in task.derived:
        _check_known((name,), [param.name for param in task.params if param.kind == "int"], where, "derived integers")
        _check_known((symbol,), _symbols(task.inputs), where, "derived symbols")


def _check_times(task: TaskSpec, loop: Loop, where: str) -> None:
    """The parameter that says how often `loop` runs lies between 1 and the loop's limit, whatever a request says."""
    name, limit = str(loop.times), loop.max_times
    param = next((param for param in task.params if param.name == name), None)
    if param is None:
        known = [param.name for param in task.params if param.kind == "int"]
        raise GraphError(f"{where} runs {name!r} times, which is no parameter of the task, {nearest(name, known)}")
    if param.kind != "int":
        raise GraphError(f"{where} runs {name!r} times, a parameter of kind {param.kind!r}, expected 'int'")
    low, high = _range(task, param)
    if low is None or low < 1:
        raise GraphError(f"{where} runs {name!r} times, which may be less than 1, give the parameter minimum=1")
    if high is None or high > limit:
        most = "has no maximum" if high is None else f"may be {high:g}"
        raise GraphError(f"{where} runs {name!r} times, which {most}, expected a maximum of at most its limit {limit}")
    if param.default is None and param.optional and not _certain_sizes(task, name):
        raise GraphError(f"{where} runs {name!r} times, which a request may leave out, give the parameter a default")


def _range(task: TaskSpec, param: ParamSpec) -> tuple[float | None, float | None]:
    """The least and the largest value of a parameter; a size that every request has bounds what derives from it."""
    limits = [limit for symbol in _certain_sizes(task, param.name) for limit in _limits(task, symbol)]
    low = 1 if _certain_sizes(task, param.name) else param.minimum
    return low, min([*limits, *([] if param.maximum is None else [param.maximum])], default=None)


def _certain_sizes(task: TaskSpec, param: str) -> list[str]:
    """The symbols from which `param` derives and which every request has."""
    required = _symbols(spec for spec in task.inputs if not spec.optional)
    return [symbol for name, symbol in task.derived if name == param and symbol in required]


def _limits(task: TaskSpec, symbol: str) -> list[int]:
    """A symbol means one size in all tensors of a request, so each tensor that must be given limits it."""
    return [limit for spec in task.inputs if not spec.optional for name, limit in spec.max_sizes if name == symbol]


def _symbols(specs: Iterable[TensorSpec]) -> list[str]:
    return [size for spec in specs for size in spec.shape if isinstance(size, str) and not size.endswith("-1")]
