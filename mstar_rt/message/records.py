"""Everything that processes of a deployment say to one another, as typed records.

Addresses are "server", "conductor" and "worker/<rank>". Times are nanoseconds on the machine's monotonic clock, which
all processes of one machine share; durations are microseconds.
"""

from __future__ import annotations

from typing import Union

from mstar_rt.message.requests import (
    CancelRequest,
    CloseSession,
    Finished,
    OpenSession,
    RequestFailed,
    ServingState,
    SessionOpened,
    Submit,
    Warmed,
    WarmUp,
)
from mstar_rt.message.tokens import (
    Emitted,
    EmittedGroup,
    Fetched,
    FetchScope,
    PeerGone,
    Release,
    Tokens,
)
from mstar_rt.message.walks import (
    Admitted,
    AskStats,
    AskTrace,
    Drain,
    Heartbeat,
    ReleaseScope,
    ResumeWalk,
    Shutdown,
    SoundMade,
    StartWalk,
    Stats,
    SuspendWalk,
    Trace,
    WalkDone,
    WalkFailed,
    WalkYields,
    WorkerReady,
)

Message = Union[
    OpenSession, CloseSession, Submit, Warmed, CancelRequest, SessionOpened, Finished, WarmUp, RequestFailed,
    ServingState, WorkerReady, Admitted, Heartbeat, StartWalk, SoundMade, WalkDone, WalkFailed, WalkYields, SuspendWalk,
    ResumeWalk, ReleaseScope, AskStats, Stats, AskTrace, Trace, Drain, Shutdown, Tokens, FetchScope, Fetched,
    Emitted, EmittedGroup, Release, PeerGone,
]  # fmt: skip
