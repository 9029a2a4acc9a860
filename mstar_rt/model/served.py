"""`ServedModel`: the declaration of one model that a deployment serves."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mstar_rt.errors import GraphError, InvalidArgument, NotFound, nearest
from mstar_rt.graph import WalkGraph
from mstar_rt.model.declaration import check_declaration
from mstar_rt.model.generation import GenerationSpec
from mstar_rt.model.generation_check import check_generation
from mstar_rt.model.policy import PolicySpec
from mstar_rt.model.policy_check import check_policy
from mstar_rt.model.spec import ParamSpec, ParamValue, TensorSpec, check_params, check_tensors

LIFETIMES = ("walk", "request", "session")


@dataclass(frozen=True)
class KVSpec:
    """Shape of one paged cache.

    `page_size` is in token positions. A model whose appends are blocks of one size takes that size as its page, so that
    a block is a page and a fork copies nothing. `lifetime` is how long its sequences live: "walk", "request" (all walks
    of one request) or "session" (a request that fails leaves the sequences as they were before it). `kept` are the
    labels of those that do; what else a walk leaves ends with it. Empty: all are kept.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    max_sequence_tokens: int
    lifetime: str = "walk"
    kept: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        if self.lifetime not in LIFETIMES:
            raise GraphError(f"a cache has lifetime {self.lifetime!r}, {nearest(self.lifetime, LIFETIMES)}")
        if isinstance(self.kept, str):
            raise GraphError(f"a cache keeps {self.kept!r}, expected a tuple of labels: ({self.kept!r},)")
        for label in self.kept:
            if not all(isinstance(part, str | int) for part in (label if isinstance(label, tuple) else (label,))):
                raise GraphError(f"a cache keeps {label!r}, expected a string, an integer or a flat tuple of them")
        if self.kept and self.lifetime == "walk":
            raise GraphError(
                f"a cache keeps {', '.join(map(repr, self.kept))}, but its lifetime is 'walk', expected 'request' or "
                "'session'"
            )

    def page_bytes(self, bytes_per_element: int) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.page_size * bytes_per_element


@dataclass(frozen=True)
class TaskSpec:
    """One kind of request: what it takes, what it gives, and the walks it runs in order.

    `walks` are run one after the other for one request. Outputs that a walk persists are inputs, by name, of the walks
    that follow it in the same request or, if the request belongs to a session, in later requests of that session.

    `derived` are integer parameters that the shapes decide: (parameter, symbol), e.g. ("rollout_horizon", "H").
    `session_inputs` are tensors that an earlier request of the session must have persisted, with the sentence that
    tells a client how to get there. Of each group in `one_of` a request gives exactly one tensor, of each in
    `at_most_one` one or none. An `anytime` task answers with the best it has when its deadline passes.
    """

    name: str
    doc: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    walks: tuple[str, ...]
    params: tuple[ParamSpec, ...] = ()
    derived: tuple[tuple[str, str], ...] = ()
    session_inputs: tuple[tuple[str, str], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    at_most_one: tuple[tuple[str, ...], ...] = ()
    criticality: str = "planning"
    anytime: bool = False


@dataclass(frozen=True)
class ServedModel:
    """A model as everyone but its nodes sees it.

    `nodes_factory` is a dotted path "module:function", imported only in the worker that runs the nodes:
    ``function(model: ServedModel, resources: NodeResources) -> Mapping[str, StatelessNode | KVNode]``, by node name.

    `node_outputs` are specifications of outputs by "node.slot". Workers with `check_outputs` hold every value against
    them, and against the outputs of the task where it is emitted.

    `policy` makes it a model that Robot.Control serves, `generation` one that Generation.Generate does.

    Raises: GraphError from the constructor, where the parts of the declaration do not fit together.
    """

    name: str
    family: str
    doc: str
    graph: WalkGraph
    tasks: tuple[TaskSpec, ...]
    nodes_factory: str
    caches: Mapping[str, KVSpec] = field(default_factory=dict)
    checkpoint: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    node_outputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    policy: PolicySpec | None = None
    generation: GenerationSpec | None = None

    def __post_init__(self) -> None:
        check_declaration(self)
        check_policy(self)
        check_generation(self)

    @property
    def cache_lifetimes(self) -> dict[str, str]:
        """How long the sequences of each cache live, as placement has to know."""
        return {name: spec.lifetime for name, spec in self.caches.items()}

    def task(self, name: str) -> TaskSpec:
        for task in self.tasks:
            if task.name == name:
                return task
        known = [task.name for task in self.tasks]
        raise NotFound(f"model {self.name!r} has no task {name!r}, {nearest(name, known)}")

    def check_request(
        self, task_name: str, tensors: Mapping[str, np.ndarray], params: Mapping[str, Any]
    ) -> dict[str, ParamValue]:
        """Validate a whole request; returns its parameters with defaults filled in."""
        task = self.task(task_name)
        where = f"{self.name}.{task_name}"
        _check_groups(task, tensors, where)
        sizes = check_tensors(task.inputs, tensors, where)
        return check_params(task.params, _with_derived(task, sizes, params, where), where)


def _check_groups(task: TaskSpec, tensors: Mapping[str, np.ndarray], where: str) -> None:
    for group in (*task.one_of, *task.at_most_one):
        given = [name for name in group if name in tensors]
        if len(given) > 1:
            raise InvalidArgument(f"{where}: tensors {' and '.join(given)} are both given, expected one of them")
        if not given and group in task.one_of:
            raise InvalidArgument(f"{where}: expected one of the tensors {', '.join(group)}, none is given")


def _with_derived(task: TaskSpec, sizes: Mapping[str, int], params: Mapping[str, Any], where: str) -> dict[str, Any]:
    merged = dict(params)
    for name, symbol in task.derived:
        if symbol not in sizes:  # an optional tensor that was not given: the option counts
            continue
        size = sizes[symbol]
        if merged.setdefault(name, size) != size:
            raise InvalidArgument(
                f"{where}: option {name!r} is {params[name]}, but the tensors have {symbol} = {size}; give one of them"
            )
    return merged
