"""Sessions: state that outlives requests."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from mstar_rt.conductor.scopes import ScopeRecord
from mstar_rt.errors import FailedPrecondition, NotFound, Unavailable

LOST = "the session's state was lost with its worker; open a new session and set the goal again"


@dataclass(slots=True)
class Session:
    """`replicas` is the rank chosen in each sticky replica group, by the group's index. `left` says where the state is,
    `ranks` are those that may hold anything of it. `turns` are the requests that go on with its sequences: the first
    one runs, the others wait for it.
    """

    session_id: str
    model: str
    replicas: dict[int, int] = field(default_factory=dict)
    left: ScopeRecord = field(default_factory=ScopeRecord)
    ranks: set[int] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    turns: deque[str] = field(default_factory=deque)


class Sessions:
    """The open ones, and the names of those that were lost, until the client closes them."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._lost: set[str] = set()
        self._num_on: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_lost(self) -> int:
        return len(self._lost)

    def num_on(self, rank: int) -> int:
        """How many sessions have chosen that rank."""
        return self._num_on[rank]

    def open(self, session_id: str, model: str) -> None:
        self._open[session_id] = Session(session_id, model)

    def get(self, session_id: str, model: str) -> Session:
        """The open session of that name.

        Raises:  Unavailable: its state was lost.  NotFound: it is not open.  FailedPrecondition: another model's.
        """
        if session_id in self._lost:
            raise Unavailable(LOST)
        session = self._open.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id!r}; it was closed or never opened")
        if session.model != model:
            raise FailedPrecondition(f"session {session_id!r} belongs to model {session.model!r}, not {model!r}")
        return session

    def find(self, session_id: str) -> Session | None:
        return self._open.get(session_id)

    def choose(self, session: Session, group: int, rank: int) -> None:
        """The session stays with `rank` in that sticky group."""
        session.replicas[group] = rank
        self._num_on[rank] += 1

    def close(self, session: Session) -> None:
        del self._open[session.session_id]
        for rank in session.replicas.values():
            self._leave(rank)

    def forget_lost(self, session_id: str) -> None:
        self._lost.discard(session_id)

    def rank_lost(self, rank: int) -> list[Session]:
        """The sessions whose state lay there: they are lost, and closed by this. Those that only had chosen the rank
        choose again."""
        lost = [session for session in self._open.values() if session.left.holds_on(rank)]
        for session in lost:
            self.close(session)
            session.ranks.discard(rank)
            self._lost.add(session.session_id)
        for session in self._open.values():
            session.ranks.discard(rank)
            for group in [group for group, chosen in session.replicas.items() if chosen == rank]:
                del session.replicas[group]
                self._leave(rank)
        return lost

    def _leave(self, rank: int) -> None:
        self._num_on[rank] -= 1
        if not self._num_on[rank]:
            del self._num_on[rank]
