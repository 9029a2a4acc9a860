"""The two engines. An engine runs one batch of one node and leaves no trace when that fails."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Hashable, Sequence
from typing import Protocol

import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import GraphError, Internal, MstarError
from mstar_rt.graph import GraphNode
from mstar_rt.model import InParts, KVNode, NodeCall, NodeResult, StatelessNode
from mstar_rt.nn.attention import AttentionBackend

logger = logging.getLogger(__name__)

MAX_FLAG = 100


class Engine(Protocol):
    """Runs steps of one node of one model. `in_parts`: its code says how many items a call has."""

    node: GraphNode
    in_parts: bool

    def batch_key(self, call: NodeCall) -> Hashable:
        """Calls with equal keys may share a step."""
        ...

    def num_items(self, call: NodeCall) -> int:
        """How many items the call has; 1 where the code does not say."""
        ...

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        """One step, of the part of each call.

        Raises:
            PagesExhausted: no step was made; fewer calls, or the same ones later, may fit.
        """
        ...


class StatelessEngine:
    """Runs a node that keeps nothing between calls."""

    def __init__(self, node: GraphNode, code: StatelessNode) -> None:
        self.node = node
        self.in_parts = isinstance(code, InParts)
        self.num_items = code.num_items if isinstance(code, InParts) else _one_item
        self._code = code
        self._no_gradients = torch.inference_mode()  # can be entered again and again; making one takes as long as a run

    def batch_key(self, call: NodeCall) -> Hashable:
        return self._code.batch_key(call)

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        with self._no_gradients:
            results = self._code.run(calls)
        return _checked(self.node, calls, results)


class KVCacheEngine:
    """Runs a node over paged memory: reserves pages, plans the attention once for the batch, runs it for all layers."""

    def __init__(self, node: GraphNode, code: KVNode, pool: KVPool, backend: AttentionBackend) -> None:
        self.node = node
        self.in_parts = isinstance(code, InParts)
        self.num_items = code.num_items if isinstance(code, InParts) else _one_item
        self.pool = pool
        self._code = code
        self._backend = backend
        self._no_gradients = torch.inference_mode()

    def batch_key(self, call: NodeCall) -> Hashable:
        return self._code.batch_key(call)

    def run(self, calls: Sequence[NodeCall]) -> Sequence[NodeResult]:
        steps = [step for call in calls for step in self._code.attention_steps(call)]
        plan = self._backend.plan(steps)
        try:
            with self._no_gradients:
                results = self._code.run(calls, plan)
            return _checked(self.node, calls, results)
        except BaseException:
            plan.rollback()
            raise


def _one_item(call: NodeCall) -> int:
    return 1


def build_engine(
    node: GraphNode, code: StatelessNode | KVNode, pool: KVPool | None, backend: AttentionBackend | None
) -> Engine:
    """The engine that a node's declaration asks for."""
    if node.engine == "kv_cache":
        assert pool is not None, f"no cache was built for node {node.name!r}"
        assert backend is not None
        if not isinstance(code, KVNode):
            raise GraphError(f"node {node.name!r} is declared kv_cache but its code has no attention_steps()")
        return KVCacheEngine(node, code, pool, backend)
    if isinstance(code, KVNode) or not isinstance(code, StatelessNode):
        raise GraphError(f"node {node.name!r} is declared stateless but its code is not (batch_key and run, no pages)")
    return StatelessEngine(node, code)


def _checked(node: GraphNode, calls: Sequence[NodeCall], results: Sequence[NodeResult]) -> Sequence[NodeResult]:
    """A node that answers with other outputs than it declares would corrupt the walk far from the cause."""
    if len(results) != len(calls):
        raise Internal(f"node {node.name!r} gave {len(results)} results for {len(calls)} calls")
    for call, result in zip(calls, results, strict=True):
        part = call.part
        if part is not None and part.stop < call.num_items:
            _check_unfinished(node, call, result)
        elif result.progress is not None:
            raise Internal(f"node {node.name!r} gave progress with {_which(call)}, expected its outputs alone")
        elif set(result.outputs) != set(node.outputs):
            raise Internal(
                f"node {node.name!r} gave outputs {sorted(result.outputs)}, it declares {sorted(node.outputs)}"
            )
        for slot, value in result.outputs.items():
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_meta:
                raise Internal(f"node {node.name!r} gave {_kind(value)} as {slot!r}, expected a dense tensor")
        result.leave = bool(result.leave)
        for flag in result.flags:
            if not isinstance(flag, str) or not flag.isprintable() or not 0 < len(flag) <= MAX_FLAG:
                raise Internal(
                    f"node {node.name!r} gave the flag {reprlib.repr(flag)}, expected printable text of up to "
                    f"{MAX_FLAG} characters"
                )
    return results


def _check_unfinished(node: GraphNode, call: NodeCall, result: NodeResult) -> None:
    if result.outputs or result.leave:
        given = f"outputs {sorted(result.outputs)}" if result.outputs else "leave"
        raise Internal(
            f"node {node.name!r} gave {given} with {_which(call)}, expected NodeResult({{}}, progress=...) from every "
            "part but the last"
        )


def _which(call: NodeCall) -> str:
    if call.part is None:
        return "the whole call"
    return f"items {call.part.start} to {call.part.stop - 1} of {call.num_items}"


def _kind(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return "a tensor without data (meta)" if value.is_meta else f"a tensor of layout {value.layout}"


def checked_num_items(engine: Engine, call: NodeCall) -> int:
    """What the node's code says; a number that is none fails this request, and names the node.

    Raises: Internal, or the MstarError that num_items raised.
    """
    try:
        num_items = engine.num_items(call)
    except MstarError:
        raise
    except BaseException as error:
        logger.error("num_items of node %s failed for request %s", engine.node.name, call.request_id, exc_info=error)
        raise Internal(f"num_items of node {engine.node.name!r} failed ({type(error).__name__})") from error
    if type(num_items) is not int or num_items < 1:
        raise Internal(f"num_items of node {engine.node.name!r} is {num_items!r}, expected a whole number from 1")
    return num_items


def checked_batch_key(engine: Engine, call: NodeCall) -> Hashable:
    """What the node's code says; a key that fails or cannot be compared fails this request, and names the node.

    Raises: Internal, or the MstarError that batch_key raised.
    """
    try:
        key = engine.batch_key(call)
        hash(key)
    except MstarError:
        raise
    except BaseException as error:
        logger.error("batch_key of node %s failed for request %s", engine.node.name, call.request_id, exc_info=error)
        raise Internal(
            f"batch_key of node {engine.node.name!r} failed ({type(error).__name__}), expected something hashable"
        ) from error
    return key
