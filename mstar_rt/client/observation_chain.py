"""Which observation of a session's history the next one follows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_UNANSWERED = 8
"""Observations of a history that a client has on their way at once: half of the commands that the server lets wait."""

Key = TypeVar("Key", bound=Hashable)


class ObservationChain(Generic[Key]):
    """An observation that is on its way counts. If it fails, so do those that were sent after it. A key stands for one
    observation, e.g. its message id.
    """

    def __init__(self) -> None:
        self._accepted: Key | None = None
        self._followed: dict[Key, Key | None] = {}
        """By key of each observation on its way: which one it follows."""

    @property
    def newest(self) -> Key | None:
        """What an observation that is sent now follows; None: nothing, it is the first."""
        return next(reversed(self._followed), self._accepted)

    def __contains__(self, key: Key) -> bool:
        """On its way, and after none that has failed."""
        return key in self._followed

    def followed_by(self, key: Key) -> Key | None:
        """What `key`, which is on its way, follows."""
        return self._followed[key]

    def sent(self, key: Key) -> None:
        self._followed[key] = self.newest

    def accepted(self, key: Key) -> None:
        if key in self._followed:
            del self._followed[key]
            self._accepted = key

    def failed(self, key: Key) -> bool:
        """True: a fault of its own. False: it follows another that has failed, or is no observation; no effect."""
        if key not in self._followed:
            return False
        doomed = {key}
        for later, followed in list(self._followed.items()):
            if later in doomed or followed in doomed:
                doomed.add(later)
                del self._followed[later]
        return True
