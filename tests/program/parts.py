"""The parts of one walk on several ranks, run with every message and every firing in random order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.graph import num_chunks
from mstar_rt.program import Firing, Program, Progress, Send, WalkRun, cut, ranks_of

Complete = Callable[[WalkRun, Firing], Progress]


def frozen(value: Any) -> Any:
    """A value as something hashable."""
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


@dataclass
class Parts:
    """`complete` computes a firing and hands in what it gave. The walk is run to its end by `run`.

    `prefer` says what goes first: "any", "messages" or "firings", each at random, or "late": messages as late and as
    much out of order as possible. `held` is a use that completes nothing as long as anything else can go on.
    """

    program: Program
    node_ranks: Sequence[int]
    times: Mapping[str, int]
    complete: Complete
    rng: random.Random
    prefer: str = "any"
    held: str | None = None
    runs: dict[int, WalkRun] = field(default_factory=dict)
    ready: list[tuple[int, Firing]] = field(default_factory=list)
    messages: list[tuple[int, Send]] = field(default_factory=list)  # (from rank, what)
    fired: Counter[Any] = field(default_factory=Counter)
    emitted: Counter[Any] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    num_sent: Counter[str] = field(default_factory=Counter)
    num_read: Counter[Any] = field(default_factory=Counter)  # chunks, by stream and the iteration around it

    def start(self, inputs: Mapping[str, Any]) -> None:
        for rank in ranks_of(self.node_ranks):
            part = cut(self.program, self.node_ranks, rank)
            run = self.runs[rank] = WalkRun(part, {name: self.times[name] for name in part.params})
            self._add(rank, Progress(run.start({name: inputs[name] for name, _ in part.inputs})))

    def run(self) -> None:
        while self.ready or self.messages:
            self.step()

    def step(self) -> None:
        free = [index for index, (_, firing) in enumerate(self.ready) if firing.name != self.held]
        if self.messages and (not free or self._is_message_next()):
            index = len(self.messages) - 1 if self.prefer == "late" else self.rng.randrange(len(self.messages))
            self._receive(*self.messages.pop(index))
        else:
            rank, firing = self.ready.pop(self.rng.choice(free or range(len(self.ready))))
            for stream in self.program.nodes[firing.node_index].drains:
                self.num_read[stream, firing.iteration[:-1]] += 1
            self._add(rank, self.complete(self.runs[rank], firing))

    def _is_message_next(self) -> bool:
        if self.prefer == "any":
            return self.rng.random() < 0.5
        return self.prefer == "messages"

    def _receive(self, sender: int, send: Send) -> None:
        assert send.rank != sender
        assert send.rank not in self.finished, f"{send} arrives after the end"
        progress = self.runs[send.rank].receive(send.kind, send.index, send.tag, send.value, send.flag)
        self._add(send.rank, progress)

    def _add(self, rank: int, progress: Progress) -> None:
        for firing in progress.ready:
            assert self.node_ranks[firing.node_index] == rank
            self._check_bound(firing)
            self.fired[firing.name, firing.iteration] += 1
        self.ready += [(rank, firing) for firing in progress.ready]
        self.messages += [(rank, send) for send in progress.sends]
        self.num_sent.update(send.kind for send in progress.sends)
        self.emitted.update((e.name, e.iteration, frozen(e.value)) for e in progress.emitted)
        if progress.finished:
            assert rank not in self.finished
            assert self.runs[rank].in_flight == 0
            self.finished.add(rank)

    def _check_bound(self, firing: Firing) -> None:
        """Fewer chunks than allowed are formed and not read, if all that the source was let run before is done."""
        for index in self.program.nodes[firing.node_index].feeds:
            stream = self.program.streams[index]
            formed = num_chunks(stream.policy, firing.iteration[-1], done=False)
            assert formed - self.num_read[index, firing.iteration[:-1]] < stream.max_ready_chunks

    @property
    def persisted(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for run in self.runs.values():
            assert not merged.keys() & run.persisted.keys(), "a value is persisted on one rank"
            merged |= run.persisted
        return merged

    @property
    def outputs(self) -> dict[str, Any]:
        return {name: value for run in self.runs.values() for name, value in run.outputs.items()}

    @property
    def num_iterations(self) -> dict[str, int]:
        """Every rank that takes part in a loop must have counted the same."""
        merged: dict[str, int] = {}
        for run in self.runs.values():
            for name, num in run.num_iterations.items():
                assert merged.setdefault(name, num) == num
        return merged

    @property
    def num_held(self) -> int:
        return sum(run.num_held for run in self.runs.values())
