"""Run every task of a model once before anyone is told that it serves.

First calls are many times slower than later ones (lazy initialisation, compilation, page faults); a robot must not meet
them. It also proves at start, not at the first request, that every walk runs to its end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mstar_rt.clock import Clock
from mstar_rt.errors import ERRORS_BY_CODE, FailedPrecondition, Internal
from mstar_rt.message import Emitted, StartWalk, WalkDone, WalkFailed
from mstar_rt.model import ServedModel, TaskSpec
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.worker import Worker

SCOPE = "warmup"


def warm_up(models: Mapping[str, LoadedModel], clock: Clock, device: str) -> None:
    """Run all tasks with zeros, every symbol of a shape being 1, and default parameters.

    Raises:
        MstarError: a walk does not run; the deployment must not start.
    """
    for name, loaded in models.items():
        rig = _Rig(models, clock, device)
        later = [task for task in loaded.model.tasks if not _try(rig, name, task)]
        for task in later:
            rig.run_task(name, task)


def _try(rig: _Rig, model: str, task: TaskSpec) -> bool:
    """False if the task needs what another task persists."""
    try:
        rig.run_task(model, task)
    except FailedPrecondition:
        return False
    return True


class _Rig:
    """A worker with nobody around it."""

    def __init__(self, models: Mapping[str, LoadedModel], clock: Clock, device: str) -> None:
        hub = InProcessHub()
        planes = InProcessPlanes()
        self._models = models
        self._conductor = hub.endpoint("conductor")
        self._server = hub.endpoint("server")
        endpoint = hub.endpoint("warmup")
        self._plane = planes.plane(self._server)
        self._worker = Worker(models, endpoint, planes.plane(endpoint), clock, device)

    def run_task(self, model: str, task: TaskSpec) -> None:
        declared = self._models[model].model
        tensors = _zeros(task)
        params = _plain(declared.check_request(task.name, tensors, {}))
        for walk in task.walks:
            refs = {
                name: self._plane.put(array.dtype.name, array.shape, array, ["warmup"])
                for name, array in tensors.items()
            }
            start = StartWalk("warmup", model, walk, SCOPE, refs, params, None, task.criticality, "server")
            self._conductor.send("warmup", start)
            self._finish_walk(declared, walk)

    def _finish_walk(self, model: ServedModel, walk: str) -> None:
        while True:
            self._worker.turn(idle_wait_s=0.0)
            for envelope in self._server.receive(0.0):
                if isinstance(envelope.message, Emitted):
                    self._plane.release(envelope.message.tensor)
            for envelope in self._conductor.receive(0.0):
                message = envelope.message
                if isinstance(message, WalkFailed):
                    kind = ERRORS_BY_CODE.get(message.code, Internal)
                    raise kind(f"warm-up of model {model.name!r}, walk {walk!r}: {message.message}")
                if isinstance(message, WalkDone):
                    return


def _zeros(task: TaskSpec) -> dict[str, np.ndarray]:
    """What is needed, and the first tensor of each group of which one is."""
    wanted = {group[0] for group in task.one_of}
    return {
        spec.name: np.zeros([1 if isinstance(size, str) else size for size in spec.shape], dtype=spec.dtypes[0])
        for spec in task.inputs
        if not spec.optional or spec.name in wanted
    }


def _plain(params: Mapping[str, object]) -> dict[str, bool | int | float | str | list[float]]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in params.items()}  # type: ignore[misc]
