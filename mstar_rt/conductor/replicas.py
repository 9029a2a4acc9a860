"""Which replica of every group a request runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from mstar_rt.conductor.sessions import Session, Sessions
from mstar_rt.placement import ReplicaGroup


def choose_replicas(
    groups: Sequence[ReplicaGroup],
    num_running: Callable[[int], int],
    sessions: Sessions,
    session: Session | None,
    warm: AbstractSet[int],
    wanted: Sequence[int] | None,
) -> tuple[int, ...]:
    """One index into `ranks` for each group.

    A session keeps its first choice in sticky groups, where its state is. `wanted` has a rank for each group, which a
    warm-up is for; without it the one of the `warm` ranks with the fewest running requests is taken, and for a
    session's lasting choice the one with the fewest sessions, as sessions are mostly idle.
    """
    choices = []
    for index, group in enumerate(groups):
        lasting = session is not None and group.sticky
        if session is not None and lasting and index in session.replicas:
            rank = session.replicas[index]
        elif wanted is not None:
            rank = wanted[index]
        else:
            rank = min(
                (rank for rank in group.ranks if rank in warm),
                key=lambda rank: (sessions.num_on(rank) if lasting else 0, num_running(rank)),
            )
        assert rank in warm or wanted is not None, "the choices of sessions are forgotten when a rank is lost"
        if session is not None and lasting and index not in session.replicas:
            sessions.choose(session, index, rank)
        choices.append(group.ranks.index(rank))
    return tuple(choices)


def replicas_over(
    rank: int, groups: Sequence[ReplicaGroup], warm: AbstractSet[int], ready: AbstractSet[int]
) -> tuple[int, ...]:
    """A rank for each group, so that `rank` is used wherever it may be.

    Elsewhere warm ranks are preferred: they cannot be what a failure is due to. Members of the same place in their
    groups go together, so that at the start few warm-ups meet all ranks.
    """
    place = next((group.ranks.index(rank) for group in groups if rank in group.ranks), 0)
    replicas = []
    for group in groups:
        others = [other for other in group.ranks if other in warm] or [each for each in group.ranks if each in ready]
        replicas.append(rank if rank in group.ranks else others[place % len(others)])
    return tuple(replicas)
