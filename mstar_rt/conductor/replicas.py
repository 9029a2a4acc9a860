"""Which replica of every group a request runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mstar_rt.conductor.sessions import Session, Sessions
from mstar_rt.placement import ReplicaGroup


def choose_replicas(
    groups: Sequence[ReplicaGroup],
    num_running: Callable[[int], int],
    sessions: Sessions,
    session: Session | None,
    wanted: int | None,
) -> tuple[int, ...]:
    """One index into `ranks` for each group.

    A session keeps its first choice in sticky groups, where its state is. `wanted` picks that member of all others;
    without it the rank with the fewest running requests is taken, and for a session's lasting choice the one with the
    fewest sessions, as sessions are mostly idle.
    """
    choices = []
    for index, group in enumerate(groups):
        lasting = session is not None and group.sticky
        if session is not None and lasting and index in session.replicas:
            choices.append(group.ranks.index(session.replicas[index]))
            continue
        if wanted is not None:
            choice = wanted % len(group.ranks)
        else:
            choice = min(
                range(len(group.ranks)),
                key=lambda i: (sessions.num_on(group.ranks[i]) if lasting else 0, num_running(group.ranks[i])),
            )
        if session is not None and lasting:
            sessions.choose(session, index, group.ranks[choice])
        choices.append(choice)
    return tuple(choices)
