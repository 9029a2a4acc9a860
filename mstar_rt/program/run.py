"""`WalkRun`: one request's progress through one walk, as tagged-token dataflow.

A value carries the iteration vector of its producer as its tag. A node fires when all its slots hold values
of one tag, so different iterations of one loop are in flight at the same time where the data allow it. The
control of a loop switches the carried values of iteration v to the next iteration or out of the loop, as soon
as it is known which: at once in a plain Loop and in the last possible iteration, else when the node that may
leave has completed v.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import Internal, InvalidArgument, nearest
from mstar_rt.program.firing import Emission, Firing, Progress
from mstar_rt.program.program import ROOT, Join, Port, Program

Tag = tuple[int, ...]

_ABSENT: Any = object()


class WalkRun:
    """State of one request in one walk. Single-threaded; values are opaque and never looked at (None is one).

    A value is dropped once nothing can read it any more: with the firing that reads it, or, where it serves
    all iterations of a loop, with the last iteration. What was emitted last and what is persisted stays.

    Args:    times: the parameters named in `program.params`, no more and no less.
    Raises:  InvalidArgument: a parameter is missing, unknown or out of range.
    """

    def __init__(self, program: Program, times: Mapping[str, int] | None = None) -> None:
        self.program = program
        self.persisted: dict[str, Any] = {}
        self._times = _loop_times(program, times or {})
        self._ready: list[Firing] = []
        self._emitted: list[Emission] = []
        self._latest: dict[str, Emission] = {}
        self._in_flight: set[Firing] = set()
        self._num_turns = [0] * len(program.loops)
        self._started = False
        self._abandoned = False
        self._clear()

    def start(self, inputs: Mapping[str, Any]) -> list[Firing]:
        """Begin; returns the firings that are ready.

        Raises: InvalidArgument: an input of the walk is missing, or a name is not one of its inputs.
        """
        assert not self._started, "a run starts once"
        known = [name for name, _ in self.program.inputs]
        where = f"walk {self.program.walk!r}"
        for name in inputs:
            if name not in known:
                raise InvalidArgument(f"{where} has no input {name!r}, {nearest(name, known)}")
        for name in known:
            if name not in inputs:
                raise InvalidArgument(f"{where} needs the input {name!r}, which is missing")
        self._started = True
        self._open(ROOT, ())
        for name, port in self.program.inputs:
            self._deliver(self.program.ports[port], (), inputs[name])
        return self._take_ready()

    def complete(self, firing: Firing, outputs: Mapping[str, Any], leave: bool = False) -> Progress:
        """Hand in what a firing gave, by output slot; `leave` ends the DynamicLoop that names the node.

        Raises: Internal: the node gave other outputs than it declares, or leaves a loop that does not let it.
        """
        assert firing in self._in_flight, f"{firing.name} {firing.iteration} is not in flight"
        if self._abandoned:
            self._in_flight.discard(firing)
            return Progress()
        node = self.program.nodes[firing.node_index]
        if len(outputs) != len(node.outputs):
            raise _wrong_outputs(firing, outputs)
        try:
            values = [(port, outputs[slot]) for slot, port in node.outputs]
        except KeyError:
            raise _wrong_outputs(firing, outputs) from None
        if leave and node.leaves is None:
            raise Internal(f"node {firing.name!r} said leave, but no DynamicLoop has leave={firing.name!r}")
        self._in_flight.discard(firing)
        tag = firing.iteration
        if node.leaves is not None:
            self._decide(node.leaves, tag, leave)
        ports = self.program.ports
        for index, value in values:
            self._deliver(ports[index], tag, value)
        finished = self._finish_item(node.loops[-1] if tag else ROOT, tag)
        emitted, self._emitted = self._emitted, []
        return Progress(self._take_ready(), emitted, finished)

    def abandon(self) -> None:
        """Drop every value. Firings in flight may still be completed, which yields nothing."""
        self._abandoned = True
        self._latest.clear()
        self.persisted = {}
        self._clear()

    @property
    def in_flight(self) -> int:
        """Number of firings handed out and not completed."""
        return len(self._in_flight)

    @property
    def outputs(self) -> dict[str, Any]:
        """The emitted values by name; of several iterations, the value of the highest one so far."""
        return {name: emission.value for name, emission in self._latest.items()}

    @property
    def num_iterations(self) -> dict[str, int]:
        """Complete iterations so far by loop name, summed over the runs of a nested loop."""
        return {loop.name: self._num_turns[loop.index] for loop in self.program.loops}

    @property
    def num_held(self) -> int:
        """Number of values and records held for what is still to come; 0 when the walk is over."""
        tables: list[Mapping[Any, Any]] = [*self._rows, *self._decisions, *self._totals, *self._remaining]
        tables += [*self._turned, *self._parked]
        lists = [values for table in self._lists.values() for values in table.values()]
        return (
            sum(len(table) for table in tables)
            + sum(len(values) for values in lists)
            + sum(len(table) for _, _, table in self._all_sticky())
        )

    def _clear(self) -> None:
        program, loops = self.program, self.program.loops
        self._rows: list[dict[Tag, list[Any]]] = [{} for _ in program.joins]
        self._sticky: list[list[tuple[int, int, dict[Tag, Any]]]] = [
            [(slot, depth, {}) for slot, depth in join.sticky] for join in program.joins
        ]
        self._lists: dict[int, dict[Tag, dict[int, Any]]] = {
            port.index: {} for port in program.ports if port.kind == "collect"
        }
        self._decisions: list[dict[Tag, bool]] = [{} for _ in loops]
        self._parked: list[dict[Tag, list[tuple[Port, Any]]]] = [{} for _ in loops]
        self._totals: list[dict[Tag, int]] = [{} for _ in loops]
        self._remaining: list[dict[Tag, int]] = [{} for _ in loops]
        self._turned: list[dict[Tag, int]] = [{} for _ in loops]
        self._root_remaining = program.num_items

    def _all_sticky(self) -> list[tuple[int, int, dict[Tag, Any]]]:
        return [entry for entries in self._sticky for entry in entries]

    def _take_ready(self) -> list[Firing]:
        ready, self._ready = self._ready, []
        return ready

    def _deliver(self, port: Port, tag: Tag, value: Any) -> None:
        for join, slot in port.reads:
            self._arrive(join, slot, tag, value)
        for name in port.emits:
            self._emit(name, tag, value)
        for name in port.persists:
            self.persisted[name] = value
        for target in port.enters:
            self._deliver(self.program.ports[target], (*tag, 0), value)
        if port.nexts or port.exits or port.collects:
            last = self._is_last(port.loop, tag)
            if last is None:
                self._parked[port.loop].setdefault(tag, []).append((port, value))
            else:
                self._switch(port, tag, value, last)

    def _arrive(self, index: int, slot: int, tag: Tag, value: Any) -> None:
        """Put a value into a slot of a join; fires what that completes."""
        join = self.program.joins[index]
        rows = self._rows[index]
        if join.depths[slot] < join.depth:
            self._arrive_sticky(index, join, slot, tag, value)
            return
        row = rows.get(tag)
        if row is None:
            row = rows[tag] = self._new_row(index, join, tag)
        row[slot] = value
        row[-1] -= 1
        if not row[-1]:
            del rows[tag]
            self._fire(index, join, tag, row)

    def _new_row(self, index: int, join: Join, tag: Tag) -> list[Any]:
        """One cell per slot, then the number of cells still empty; what is sticky may be there already."""
        num_slots = len(join.depths)
        row: list[Any] = [None] * num_slots
        for slot, depth, values in self._sticky[index]:
            value = values.get(tag[:depth], _ABSENT)
            if value is not _ABSENT:
                row[slot] = value
                num_slots -= 1
        row.append(num_slots)
        return row

    def _arrive_sticky(self, index: int, join: Join, slot: int, prefix: Tag, value: Any) -> None:
        next(values for s, _, values in self._sticky[index] if s == slot)[prefix] = value
        rows, depth = self._rows[index], len(prefix)
        for tag in [tag for tag in rows if tag[:depth] == prefix]:
            row = rows[tag]
            row[slot] = value
            row[-1] -= 1
            if not row[-1]:
                del rows[tag]
                self._fire(index, join, tag, row)

    def _fire(self, index: int, join: Join, tag: Tag, row: list[Any]) -> None:
        if join.relay_to is not None:
            self._deliver(self.program.ports[join.relay_to], (*tag, 0), row[0])
            return
        node = self.program.nodes[index]
        inputs = dict(zip(node.slots, row, strict=False))
        firing = Firing(index, node.name, node.node, tag, inputs, node.order)
        self._in_flight.add(firing)
        self._ready.append(firing)

    def _emit(self, name: str, tag: Tag, value: Any) -> None:
        emission = Emission(name, tag, value)
        self._emitted.append(emission)
        latest = self._latest.get(name)
        if latest is None or latest.iteration <= tag:
            self._latest[name] = emission

    def _open(self, scope: int, tag: Tag) -> None:
        """Tell those that have no other sign of it that iteration `tag` of a loop (or the walk itself)
        begins."""
        opening = self.program.openings[scope + 1]
        for index in opening.joins:
            self._arrive(index, len(self.program.joins[index].depths) - 1, tag, None)
        for inner in opening.loops:
            at_once = 1 if self.program.loops[inner].dynamic else self._times[inner]
            for turn in range(at_once):
                self._open(inner, (*tag, turn))

    def _is_last(self, loop: int, tag: Tag) -> bool | None:
        """Whether iteration `tag` is the last of its run of the loop; None while that is open."""
        if tag[-1] + 1 == self._times[loop]:
            return True
        if self.program.loops[loop].dynamic:
            return self._decisions[loop].get(tag)
        return False

    def _total(self, loop: int, around: Tag) -> int | None:
        """How many iterations this run of the loop has; None while that is open."""
        return self._totals[loop].get(around) if self.program.loops[loop].dynamic else self._times[loop]

    def _decide(self, loop: int, tag: Tag, leave: bool) -> None:
        """The node that may leave has completed iteration `tag`."""
        last = leave or tag[-1] + 1 == self._times[loop]
        self._decisions[loop][tag] = last
        if last:
            self._totals[loop][tag[:-1]] = tag[-1] + 1
        else:
            self._open(loop, (*tag[:-1], tag[-1] + 1))
        for port, value in self._parked[loop].pop(tag, ()):
            self._switch(port, tag, value, last)

    def _switch(self, port: Port, tag: Tag, value: Any, last: bool) -> None:
        ports, around = self.program.ports, tag[:-1]
        for target in port.collects:
            self._collect(ports[target], port.loop, tag, value, last)
        if last:
            for target in port.exits:
                self._deliver(ports[target], around, value)
        elif port.nexts:
            following = (*around, tag[-1] + 1)
            for target in port.nexts:
                self._deliver(ports[target], following, value)

    def _collect(self, port: Port, loop: int, tag: Tag, value: Any, last: bool) -> None:
        """Values may come out of order; the list leaves when that of every iteration is there."""
        around, turn = tag[:-1], tag[-1]
        table = self._lists[port.index]
        values = table.setdefault(around, {})
        values[turn] = value
        if last:
            self._totals[loop][around] = turn + 1
        total = self._total(loop, around)
        if len(values) == total:
            del table[around]
            self._deliver(port, around, [values[v] for v in range(total)])

    def _finish_item(self, loop: int, tag: Tag) -> bool:
        """A node or inner loop is done with iteration `tag` of `loop`; returns whether the walk is over."""
        loops = self.program.loops
        while loop != ROOT:
            remaining = self._remaining[loop]
            left = remaining.pop(tag, loops[loop].num_items) - 1
            if left:
                remaining[tag] = left
                return False
            self._decisions[loop].pop(tag, None)
            self._num_turns[loop] += 1
            tag = tag[:-1]
            turned = self._turned[loop].pop(tag, 0) + 1
            if turned != self._total(loop, tag):
                self._turned[loop][tag] = turned
                return False
            self._end_loop(loop, tag)
            loop = loops[loop].parent
        self._root_remaining -= 1
        return self._root_remaining == 0

    def _end_loop(self, loop: int, around: Tag) -> None:
        self._totals[loop].pop(around, None)
        for join, slot in self.program.loops[loop].frees:
            next(values for s, _, values in self._sticky[join] if s == slot).pop(around)


def _loop_times(program: Program, times: Mapping[str, int]) -> list[int]:
    """How often each loop runs (at most, if dynamic) in this request."""
    limits, where = program.params, f"walk {program.walk!r}"
    for name, value in times.items():
        if name not in limits:
            raise InvalidArgument(f"{where} has no loop parameter {name!r}, {nearest(name, limits)}")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limits[name]:
            raise InvalidArgument(f"{where} has {name} = {value!r}, expected an integer from 1 to {limits[name]}")
    for name, limit in limits.items():
        if name not in times:
            raise InvalidArgument(f"{where} needs the parameter {name!r}, an integer from 1 to {limit}")
    return [times[loop.param] if loop.param is not None else loop.limit for loop in program.loops]


def _wrong_outputs(firing: Firing, outputs: Mapping[str, Any]) -> Internal:
    gave = ", ".join(sorted(map(repr, outputs))) or "nothing"
    want = ", ".join(map(repr, firing.node.outputs)) or "nothing"
    return Internal(f"node {firing.name!r} gave {gave} in iteration {list(firing.iteration)}, expected {want}")
