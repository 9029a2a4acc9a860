"""Workers as a conductor knows them: they take in messages late, and end their parts when they like."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container
from dataclasses import dataclass, field

from mstar_rt.message import (
    Admitted,
    CancelRequest,
    Message,
    NodeTime,
    PeerGone,
    ReleaseScope,
    ResumeWalk,
    StartWalk,
    SuspendWalk,
    WalkDone,
    WalkFailed,
    WalkYields,
)  # fmt: skip


@dataclass
class Part:
    start: StartWalk
    walk_id: int
    state: str = "running"  # "running", "done" or "suspended"


@dataclass
class WorkerModel:
    """One life of one rank. `requests` and `sessions` are those of which it may hold anything, `kept` the inputs that
    are to stay for later walks."""

    rank: int
    pid: int
    inbox: deque[Message] = field(default_factory=deque)
    outbox: deque[Message] = field(default_factory=deque)
    parts: dict[str, Part] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    kept: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    sessions: set[str] = field(default_factory=set)
    last_walk_id: int = 0

    def running(self) -> list[Part]:
        return [part for part in self.parts.values() if part.state == "running"]

    def holds_anything(self) -> bool:
        return any((self.parts, self.failed, self.cancelled, self.requests, self.kept, self.sessions))

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, request_ids: Container[str]) -> Message:
        """Take in one message; scopes that are no requests are sessions."""
        message = self.inbox.popleft()
        match message:
            case StartWalk():
                self._start(message)
            case CancelRequest():
                self.parts.pop(message.request_id, None)
                self.cancelled.add(message.request_id)
            case ReleaseScope():
                self._release(message.scope, message.scope in request_ids)
            case SuspendWalk() | ResumeWalk():
                self._turn_over(message)
            case Admitted() | PeerGone():
                pass
            case _:
                raise AssertionError(f"a worker got {message}")
        return message

    def _start(self, start: StartWalk) -> None:
        assert start.walk_id > self.last_walk_id
        self.last_walk_id = start.walk_id
        before = self.parts.get(start.request_id)
        assert before is None or before.state == "done", "two walks of one request at once"
        assert set(start.keep) <= set(start.inputs)
        self.kept[start.request_id] |= set(start.keep)
        self.requests.add(start.request_id)
        if start.scope != start.request_id:
            self.sessions.add(start.scope)
        self.parts[start.request_id] = Part(start, start.walk_id)

    def _turn_over(self, message: SuspendWalk | ResumeWalk) -> None:
        part = self.parts.get(message.request_id)
        if part is None:
            assert message.request_id in self.failed, "it never was here"
        elif isinstance(message, SuspendWalk):
            assert part.state in ("running", "done")
            assert part.walk_id == message.walk_id
            part.state = "suspended"
        else:
            assert part.state == "suspended"
            part.state, part.walk_id = "running", message.walk_id

    def _release(self, scope: str, is_request: bool) -> None:
        if not is_request:
            self.sessions.discard(scope)
            return
        part = self.parts.pop(scope, None)
        assert part is None or part.state == "done"
        self.requests.discard(scope)
        self.kept.pop(scope, None)
        self.failed.discard(scope)
        self.cancelled.discard(scope)

    # --- doing -------------------------------------------------------------------------------------------------------

    def finish(self, part: Part, num: int = 1) -> None:
        part.state = "done"
        times = {"n": NodeTime(num, 1.0, 1.0, 0)}
        done = WalkDone(part.start.request_id, part.walk_id, self.rank, num, times, {"l": 1.0}, {"l": num}, [])
        self.outbox.append(done)

    def fail(self, part: Part) -> None:
        request_id = part.start.request_id
        del self.parts[request_id]
        self.failed.add(request_id)
        self.outbox.append(WalkFailed(request_id, part.walk_id, self.rank, "INTERNAL", "it broke"))

    def may_give_way(self, part: Part) -> bool:
        """Never the oldest of a rank."""
        return any(other.start.age < part.start.age for other in self.running())

    def give_way(self, part: Part) -> None:
        self.outbox.append(WalkYields(part.start.request_id, part.walk_id, self.rank))
