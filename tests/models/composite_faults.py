"""What a node of the composite model may be asked to do wrong, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from mstar_rt.errors import FailedPrecondition
from mstar_rt.model import NodeCall, NodeResult, ParamSpec

FAULTS = (
    "none", "raise", "own_error", "out_of_memory", "wrong_outputs", "wrong_shape", "nan", "too_few", "bad_key", "hang",
    "die", "stop", "slow",
)  # fmt: skip

FAULT_PARAMS = (
    ParamSpec("fault", "str", "none", "what goes wrong", choices=FAULTS),
    ParamSpec("fault_node", "str", "", "in which use of a node"),
    ParamSpec("fault_at", "int", -1, "in which iteration of the innermost loop; -1: in each", minimum=-1),
    ParamSpec("slow_ms", "float", 20.0, "how slow is slow", minimum=0, maximum=60000),
)


def fault_of(call: NodeCall) -> str:
    """The fault that this call was asked for, else "none"."""
    at = call.params["fault_at"]
    due = call.params["fault_node"] == call.node and (at == -1 or call.iteration[-1:] == (at,))
    return str(call.params["fault"]) if due else "none"


def check_key(call: NodeCall) -> None:
    if fault_of(call) == "bad_key":
        raise RuntimeError("a secret of the implementation")


def before(calls: Sequence[NodeCall]) -> None:
    """Faults of the step itself."""
    for call in calls:
        fault = fault_of(call)
        if fault == "raise":
            raise RuntimeError("a secret of the implementation")
        if fault == "own_error":
            raise FailedPrecondition(f"node {call.node} refuses this")
        if fault == "out_of_memory":
            raise MemoryError("cannot allocate")
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "hang":
            _never()
        if fault == "slow":
            time.sleep(call.params["slow_ms"] / 1e3)


def after(calls: Sequence[NodeCall], results: list[NodeResult]) -> list[NodeResult]:
    """Faults of what the step gives."""
    if any(fault_of(call) == "too_few" for call in calls):
        return results[1:]
    return [
        NodeResult(_spoiled(fault_of(call), result.outputs), result.leave, result.flags)
        for call, result in zip(calls, results, strict=True)
    ]


def _spoiled(fault: str, outputs: dict[str, Any]) -> dict[str, Any]:
    if fault == "wrong_outputs":
        return {f"not_{name}": value for name, value in outputs.items()}
    if fault == "wrong_shape":
        return {name: value[None] for name, value in outputs.items()}
    if fault == "nan":
        return {name: value * float("nan") if value.is_floating_point() else value for name, value in outputs.items()}
    return outputs


def _never() -> None:
    while True:
        time.sleep(3600)
