"""What a walk reads that no client gave with the request."""

from __future__ import annotations

from mstar_rt.errors import FailedPrecondition, InvalidArgument, MstarError
from mstar_rt.model import ServedModel


class AbsentInputs:
    """What may be missing, found once for each walk and name: a request of one task leaves out most of what all its
    tasks can take."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._faults: dict[tuple[str, str], tuple[type[MstarError], str] | None] = {}

    def check(self, walk: str, name: str) -> None:
        """Nobody gave that input; the node gets None in its place where that is allowed.

        An input comes from the client, from an earlier walk of the request, or from an earlier request of the session.

        Raises:
            FailedPrecondition: an earlier request of the session should have made it.
            InvalidArgument: the client must give it.
        """
        key = (walk, name)
        if key not in self._faults:
            self._faults[key] = self._fault(walk, name)
        fault = self._faults[key]
        if fault is not None:
            kind, sentence = fault
            raise kind(sentence)

    def _fault(self, walk: str, name: str) -> tuple[type[MstarError], str] | None:
        model, where = self._model, f"{self._model.name}.{walk}"
        tasks = [task for task in model.tasks if walk in task.walks]
        if any(spec.optional for task in tasks for spec in task.inputs if spec.name == name):
            return None
        for task in tasks:
            for tensor, advice in task.session_inputs:
                if tensor == name:
                    return FailedPrecondition, f"{where}: {name!r} is not known yet, {advice}"
        if any(name == persisted.split(".")[-1] for walk in model.graph.walks for persisted in walk.persist):
            return None
        return InvalidArgument, f"{where}: input {name!r} was not given"
