"""How far the loops of one run have come: which iterations exist, which is the last, which are complete."""

from __future__ import annotations

from typing import Any

from mstar_rt.program.matching import Matching, Tag
from mstar_rt.program.program import ROOT, Port, Program

Parked = list[tuple[Port, Any]]


class LoopControl:
    """A run of a loop is named by the tag of the iteration around it (`around`), an iteration by its own tag.

    An iteration is complete when its items are: the nodes and inner loops of its body and, where a decision comes from
    elsewhere, that decision. `times[i]` is how often loop i runs, at most if it is dynamic.
    """

    def __init__(self, program: Program, times: list[int], matching: Matching) -> None:
        loops = program.loops
        self.num_turns = [0] * len(loops)
        self._loops = loops
        self._times = times
        self._matching = matching
        self._root_remaining = program.num_items
        self._decisions: list[dict[Tag, bool]] = [{} for _ in loops]
        self._parked: list[dict[Tag, Parked]] = [{} for _ in loops]
        self._totals: list[dict[Tag, int]] = [{} for _ in loops]
        self._remaining: list[dict[Tag, int]] = [{} for _ in loops]
        self._turned: list[dict[Tag, int]] = [{} for _ in loops]
        self._lists: dict[int, dict[Tag, dict[int, Any]]] = {p.index: {} for p in program.ports if p.kind == "collect"}

    def num_open_at_once(self, loop: int) -> int:
        """How many iterations there are for sure when a run of the loop begins."""
        return 1 if self._loops[loop].dynamic else self._times[loop]

    def is_last(self, loop: int, tag: Tag) -> bool | None:
        """Whether iteration `tag` is the last of its run of the loop; None while that is open."""
        if tag[-1] + 1 == self._times[loop]:
            return True
        if self._loops[loop].dynamic:
            return self._decisions[loop].get(tag)
        return False

    def park(self, port: Port, tag: Tag, value: Any) -> None:
        """Keep a value until it is known whether iteration `tag` is the last one."""
        self._parked[port.loop].setdefault(tag, []).append((port, value))

    def decide(self, loop: int, tag: Tag, leave: bool) -> tuple[bool, Parked]:
        """Whether iteration `tag` is the last one, and the values that waited for that to be known."""
        last = leave or tag[-1] + 1 == self._times[loop]
        self._decisions[loop][tag] = last
        if last:
            self._totals[loop][tag[:-1]] = tag[-1] + 1
        return last, self._parked[loop].pop(tag, [])

    def collect(self, port: Port, loop: int, tag: Tag, value: Any, last: bool) -> list[Any] | None:
        """Values may come out of order; returns the list when that of every iteration is there."""
        around, turn = tag[:-1], tag[-1]
        table = self._lists[port.index]
        values = table.setdefault(around, {})
        values[turn] = value
        if last:
            self._totals[loop][around] = turn + 1
        total = self._total(loop, around)
        if len(values) != total:
            return None
        del table[around]
        return [values[v] for v in range(total)]

    def finish_item(self, loop: int, tag: Tag) -> bool:
        """An item is done with iteration `tag` of `loop`; returns whether that was the last of the whole run."""
        loops = self._loops
        while loop != ROOT:
            remaining = self._remaining[loop]
            left = remaining.pop(tag, loops[loop].num_items) - 1
            if left:
                remaining[tag] = left
                return False
            if loops[loop].dynamic:
                del self._decisions[loop][tag]
            self.num_turns[loop] += 1
            tag = tag[:-1]
            turned = self._turned[loop].pop(tag, 0) + 1
            if turned != self._total(loop, tag):
                self._turned[loop][tag] = turned
                return False
            self._end_loop(loop, tag)
            loop = loops[loop].parent
        self._root_remaining -= 1
        return self._root_remaining == 0

    @property
    def num_held(self) -> int:
        tables: list[list[Any]] = [self._decisions, self._totals, self._remaining, self._turned, self._parked]
        lists = [values for table in self._lists.values() for values in table.values()]
        return sum(len(entries) for table in tables for entries in table) + sum(map(len, lists))

    def _total(self, loop: int, around: Tag) -> int | None:
        """How many iterations this run of the loop has; None while that is open."""
        return self._totals[loop].get(around) if self._loops[loop].dynamic else self._times[loop]

    def _end_loop(self, loop: int, around: Tag) -> None:
        self._totals[loop].pop(around, None)
        for join, slot in self._loops[loop].frees:
            self._matching.free(join, slot, around)
