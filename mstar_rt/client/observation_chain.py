"""Which observation of a session's history the next one follows."""

from __future__ import annotations


class ObservationChain:
    """An observation that is on its way counts. If it fails, so do those that were sent after it."""

    def __init__(self) -> None:
        self._accepted: int | None = None
        self._followed: dict[int, int | None] = {}
        """By id of each observation on its way: which one it follows."""

    @property
    def newest(self) -> int | None:
        """Message id of what an observation that is sent now follows; None: of nothing, it is the first."""
        return next(reversed(self._followed), self._accepted)

    def sent(self, message_id: int) -> None:
        self._followed[message_id] = self.newest

    def accepted(self, message_id: int) -> None:
        if message_id in self._followed:
            del self._followed[message_id]
            self._accepted = message_id

    def failed(self, message_id: int) -> None:
        """Without effect on a message that is no observation, or one that follows another which has failed."""
        doomed = {message_id}
        for later, followed in list(self._followed.items()):
            if later in doomed or followed in doomed:
                doomed.add(later)
                del self._followed[later]
