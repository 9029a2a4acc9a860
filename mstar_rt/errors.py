"""Every error a caller of mstar-rt may meet, each with a stable code.

A message is one sentence that says what was wrong, what was expected and where. The code is the name of the gRPC status
that the server answers with; a command-line program ends with exit code 2 on any of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MstarError(Exception):
    """Base of all errors that a caller may meet; anything else that escapes is a bug of ours.

    `retry_after_s` is when trying again is worth it, where that can be said.
    """

    code = "INTERNAL"
    retryable = False
    retry_after_s: float | None = None


class InvalidArgument(MstarError):
    """The request itself is wrong: shape, dtype, range, NaN, an unknown option."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(MstarError):
    """The server takes calls with a token only, and this one has none or a wrong one."""

    code = "UNAUTHENTICATED"


class NotFound(MstarError):
    """A model, task, walk or session of that name does not exist."""

    code = "NOT_FOUND"


class FailedPrecondition(MstarError):
    """The request is well formed but the system is not in a state to serve it."""

    code = "FAILED_PRECONDITION"


class ResourceExhausted(MstarError):
    """A declared limit was reached; the message carries the numbers."""

    code = "RESOURCE_EXHAUSTED"
    retryable = True


class Unavailable(MstarError):
    """A process that was needed is gone or draining; retry after a delay."""

    code = "UNAVAILABLE"
    retryable = True
    retry_after_s: float | None = 1.0


class DeadlineExceeded(MstarError):
    """The deadline passed before there was anything to answer."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(MstarError):
    """The caller went away or took the request back."""

    code = "CANCELLED"


class Unimplemented(MstarError):
    """Part of the wire API that this server does not serve."""

    code = "UNIMPLEMENTED"


class Internal(MstarError):
    """A step failed inside the runtime; the traceback is in the server's log under the request id."""

    code = "INTERNAL"


class GraphError(FailedPrecondition):
    """A model's declaration is wrong; raised when the model is loaded, never when a request arrives."""


class ConfigError(InvalidArgument):
    """A deployment or model file has an unknown key, a missing key or a value out of range."""


class CheckpointError(FailedPrecondition):
    """A weights file lacks a key, has an unknown one, or holds a tensor of another shape."""


class PagesExhausted(ResourceExhausted):
    """No free pages: retryable, the caller keeps the request queued until pages return.

    The message has the numbers only: whoever refuses a request for good says what to change.
    """


class SharedMemoryExhausted(ResourceExhausted):
    """No room in a shared-memory arena: retryable once consumers release what they hold."""


class LargerThanSharedMemory(SharedMemoryExhausted):
    """What would find no room in an empty arena either."""


ERRORS_BY_CODE: dict[str, type[MstarError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument, Unauthenticated, NotFound, FailedPrecondition, ResourceExhausted, Unavailable,
        DeadlineExceeded, Cancelled, Unimplemented, Internal,
    )
}  # fmt: skip


MAX_SENTENCE = 1000


def sentence(error: BaseException) -> str:
    """What an error says, as text that every wire carries: gRPC takes 8 kB of status at most, and a caller's own value
    may be quoted in it, however long or strange it is."""
    text = str(error).encode(errors="replace").decode()
    if len(text) <= MAX_SENTENCE:
        return text
    half = MAX_SENTENCE // 2
    return f"{text[:half]} ... {text[-half:]}"


MAX_COMPARED = 256
"""Characters of a name that is compared with others: one of megabytes would keep a server's event loop for a second."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Ending for a message about an unknown name: the nearest right one, or all there are."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5) if len(name) <= MAX_COMPARED else []
    if match:
        return f"did you mean {match[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none are known"
