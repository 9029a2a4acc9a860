"""What a walk reads that no client gave with the request."""

from __future__ import annotations

from typing import Any

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.message import StartWalk
from mstar_rt.worker.loaded import LoadedModel


def absent_input(loaded: LoadedModel, start: StartWalk, name: str) -> Any:
    """The value of a walk's input that nobody gave: None where that is allowed.

    An input comes from the client, from an earlier walk of the request, or from an earlier request of the session.

    Raises:
        FailedPrecondition: an earlier request of the session should have made it.
        InvalidArgument: the client must give it.
    """
    tasks = [task for task in loaded.model.tasks if start.walk in task.walks]
    if any(spec.optional for task in tasks for spec in task.inputs if spec.name == name):
        return None
    for task in tasks:
        for tensor, advice in task.session_inputs:
            if tensor == name:
                raise FailedPrecondition(f"{start.model}.{start.walk}: {name!r} is not known yet, {advice}")
    if any(name == persisted.split(".")[-1] for walk in loaded.model.graph.walks for persisted in walk.persist):
        return None
    raise InvalidArgument(f"{start.model}.{start.walk}: input {name!r} was not given")
