"""What became of each call of a batch, with a failing call kept from taking the others with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from mstar_rt.engine.engine import Engine
from mstar_rt.errors import Internal, MstarError, PagesExhausted
from mstar_rt.model import NodeCall, NodeResult

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """Exactly one of: a result; an error that ends the request; a shortage of pages, for which the call must wait."""

    result: NodeResult | None = None
    error: MstarError | None = None
    shortage: PagesExhausted | None = None

    @property
    def must_wait(self) -> bool:
        return self.shortage is not None


def run_isolating_failures(engine: Engine, calls: Sequence[NodeCall]) -> list[Outcome]:
    """Run a batch. After a failure every call is retried alone once, so that only those that fail alone fail.

    When pages run out the batch is halved until what fits has run; a single call that does not fit must wait.
    """
    try:
        return [Outcome(result=result) for result in engine.run(calls)]
    except PagesExhausted as shortage:
        if len(calls) == 1:
            return [Outcome(shortage=shortage)]
        half = len(calls) // 2
        return run_isolating_failures(engine, calls[:half]) + run_isolating_failures(engine, calls[half:])
    except BaseException as error:
        # Also SystemExit and the like: what a node's library raises must not end the worker, with everybody's requests.
        if len(calls) == 1:
            return [Outcome(error=_as_answer(error, engine, calls[0]))]
        logger.warning("a step of node %s with %d calls failed, retrying each alone", engine.node.name, len(calls))
        return [outcome for call in calls for outcome in run_isolating_failures(engine, [call])]


def _as_answer(error: BaseException, engine: Engine, call: NodeCall) -> MstarError:
    """What the client may see. Our own errors keep their sentence; anything else is logged and stays here."""
    if isinstance(error, MstarError):
        return error
    logger.error("node %s failed for request %s", engine.node.name, call.request_id, exc_info=error)
    return Internal(
        f"node {engine.node.name!r} failed ({type(error).__name__}); the server's log has the traceback under request "
        f"{call.request_id}"
    )
