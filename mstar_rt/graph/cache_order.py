"""Refuse walks in which nodes of one cache could run in another order than they are written in.

What a node appends to a sequence comes behind what is there already. So of any two runs of nodes of one cache, one must
wait for the other, by values or by the control of loops; branches of a Parallel, which use different sequences, aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Union

from mstar_rt.errors import GraphError
from mstar_rt.graph.binding import BoundLoop, BoundUse, BoundWalk
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Parallel, Section
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, Streamed, WalkInput
from mstar_rt.graph.walk import Walk

# What is surely complete. (use, None): all runs of a use in the present iterations of the loops around both it and what
# waits; (use, loop): its runs in all earlier iterations of `loop`, in the present iteration of what is around that.
Done = frozenset[tuple[str, str | None]]
# By where a value is; by ("run of", use) and ("first of", last value of a stream's source) where there is none.
Values = dict[Union[Source, tuple[str, str], tuple[str, LastValue]], Done]
NOTHING: Done = frozenset()


def check_cache_order(bound: BoundWalk) -> None:
    """Raises: GraphError naming the walk, the cache, the two nodes and what to change."""
    if any(placed.use.node.cache is not None for placed in bound.uses):
        _Order(bound).check()


def siblings_of(walk: Walk) -> frozenset[frozenset[str]]:
    """Pairs of node uses that are in different branches of one Parallel."""
    return frozenset(_siblings(walk.body))


def _siblings(section: Section) -> Iterator[frozenset[str]]:
    if isinstance(section, NodeUse):
        return
    parts = (section.body,) if isinstance(section, Loop) else section.sections
    for index, part in enumerate(parts):
        yield from _siblings(part)
        if isinstance(section, Parallel):
            others = [use for other in parts[index + 1 :] for use in _uses(other)]
            yield from (frozenset((use, other)) for use in _uses(part) for other in others)


def _uses(section: Section) -> Iterator[str]:
    if isinstance(section, NodeUse):
        yield section.name
        return
    for part in (section.body,) if isinstance(section, Loop) else section.sections:
        yield from _uses(part)


class _Order:
    """Goes through a walk as it is written, with what is complete whenever a value is there."""

    def __init__(self, bound: BoundWalk) -> None:
        self.bound = bound
        self.loops = {each.loop.name: each for each in bound.loops}
        self.cached = [placed for placed in bound.uses if placed.use.node.cache is not None]
        self._placed = {placed.use.name: placed for placed in bound.uses}
        self._siblings = siblings_of(bound.walk)

    def check(self) -> None:
        values: Values = {WalkInput(name): NOTHING for name in self.bound.inputs}
        self.section(self.bound.walk.body, values, NOTHING, NOTHING)

    def section(self, section: Section, values: Values, opened: Done, vacuous: Done) -> None:
        """Add what `section` gives to `values`. `opened` is complete when the present iteration begins; `vacuous` are
        the earlier iterations of loops that are in their first one."""
        if isinstance(section, NodeUse):
            self._use(self._placed[section.name], values, opened, vacuous)
        elif isinstance(section, Loop):
            _LoopOrder(self, self.loops[section.name], values, opened, vacuous).run()
        else:
            for part in section.sections:
                self.section(part, values, opened, vacuous)

    def waited(self, sources: tuple[Source, ...], loops: tuple[str, ...], values: Values, opened: Done) -> Done:
        """What is complete when `sources` are there in an iteration of `loops`. If none of them is of that very
        iteration, its beginning is waited for as well."""
        done = NOTHING.union(*(values[source] for source in sources))
        return done if any(self.bound.loops_around(source) == loops for source in sources) else done | opened

    def _use(self, placed: BoundUse, values: Values, opened: Done, vacuous: Done) -> None:
        name, node = placed.use.name, placed.use.node
        done = vacuous | self.waited(placed.inputs, placed.loops, values, opened)
        if node.cache is not None:
            self._check(placed, done)
            done |= {(name, None)}
        values[("run of", name)] = done
        values.update({NodeOutput(name, slot): done for slot in node.outputs})

    def _check(self, placed: BoundUse, done: Done) -> None:
        for other in self.cached:
            name = other.use.name
            if other.use.node.cache != placed.use.node.cache or frozenset((name, placed.use.name)) in self._siblings:
                continue
            if other.position < placed.position and (name, None) not in done:
                raise self._error(other.use, placed.use, None)
            for loop in placed.loops:
                if loop in other.loops and (name, loop) not in done:
                    raise self._error(other.use, placed.use, loop)

    def _error(self, before: NodeUse, after: NodeUse, loop: str | None) -> GraphError:
        first, second = before.name, after.name
        what = f"walk {self.bound.walk.name!r} leaves open in which order cache {after.node.cache!r} is written"
        apart = "put them in different branches of a Parallel if they use different sequences"
        if loop is None:
            let = f"let {second!r} read an output of {first!r}, directly or by way of other nodes"
            if not before.node.outputs:
                let = f"give {first!r}, which has none, an output that {second!r} reads"
            return GraphError(f"{what}: {second!r} does not wait for {first!r}; {let}, or {apart}")
        return GraphError(
            f"{what}: in loop {loop!r}, {second!r} does not wait for {first!r} of the iteration before; carry "
            f"something through {loop!r} that follows from {first!r} and that {second!r} needs"
            + (f", or {apart}" if first != second else "")
        )


class _LoopOrder:
    """One loop in one iteration of what is around it; `outer` are the values there.

    Its iterations are gone through until one begins with what an earlier one began with.
    """

    def __init__(self, order: _Order, around: BoundLoop, outer: Values, opened: Done, vacuous: Done) -> None:
        self._order = order
        self._around = around
        self._name = around.loop.name
        self._inside = frozenset(p.use.name for p in order.cached if self._name in p.loops)
        self._outer = outer
        self._opened = opened
        self._vacuous = vacuous
        self._items = {
            Streamed(self._name, each.use, each.slot): LastValue(each.producer_loop, each.source)
            for each in order.bound.streams
            if each.consumer_loop == self._name
        }

    def run(self) -> None:
        """Adds to the outer values: the last ones, the lists, and the first items of streams."""
        begin, carried = self._opened, self._first_carried()
        turns: list[Values] = []
        ends: list[Values] = []  # the same, were it the last iteration
        seen: dict[object, int] = {}
        max_times = self._order.bound.max_times(self._name)
        while len(turns) < max_times and (begin, tuple(carried.values())) not in seen:
            if turns:  # iteration 0 is like no other, as none is earlier
                seen[begin, tuple(carried.values())] = len(turns)
            is_first = not turns
            turns.append(self._turn(carried, begin, is_first, is_last=False))
            ends.append(self._turn(carried, begin, is_first, is_last=True) if self._items else turns[-1])
            begin = self._begin_of_next(turns[-1], begin)
            carried = {
                Carried(self._name, name): self._to_next(turns[-1][following]) | begin
                for name, _, following in self._around.carries
            }
        self._leave(turns, ends, seen.get((begin, tuple(carried.values())), 0))

    def _first_carried(self) -> Values:
        loops, outer, carries = self._around.loops, self._outer, self._around.carries
        return {
            Carried(self._name, name): self._order.waited((initial,), loops, outer, self._opened)
            for name, initial, _ in carries
        }

    def _turn(self, carried: Values, begin: Done, is_first: bool, is_last: bool) -> Values:
        """The values of one iteration, with those of outside."""
        values = {**self._outer, **carried}
        for chunk, item in self._items.items():
            values[chunk] = self._outer[item if is_last else ("first of", item)]
        vacuous = self._vacuous | {(use, self._name) for use in self._inside if is_first}
        self._order.section(self._around.loop.body, values, begin, vacuous)
        return values

    def _begin_of_next(self, turn: Values, begin: Done) -> Done:
        """All iterations of a plain loop begin at once, others when it is known that they exist. That chunks tell so in
        a StreamLoop is no help: what is outside must be waited for in iteration 0 as well, which begins without."""
        leave = self._around.loop.leave_node
        return begin if leave is None else self._to_next(turn[("run of", leave)] | begin)

    def _leave(self, turns: list[Values], ends: list[Values], repeats_from: int) -> None:
        loop, outside = self._around.loop, set(self._outer)
        times = loop.times if loop.leave_node is None and isinstance(loop.times, int) else None
        lasts = list(range(len(turns)))
        if times is not None:
            beyond = times > len(turns)
            lasts = [repeats_from + (times - 1 - repeats_from) % (len(turns) - repeats_from) if beyond else times - 1]
        added: Values = {}
        for source in turns[0]:
            if source not in outside and not isinstance(source, tuple):
                added[LastValue(self._name, source)] = _all_have(self._to_outside(ends[n][source]) for n in lasts)
                added["first of", LastValue(self._name, source)] = self._outside_only(turns[0][source])
        for name, source in self._around.collects:
            added[Collected(self._name, name)] = _all_have(
                self._list(source, turns if times is not None else turns[: n + 1], ends[n]) for n in lasts
            )
        if self._items:
            # The first stream that is read on a rank tells there, and any one reader may be alone on its rank.
            firsts = {chunk.use: item for chunk, item in reversed(self._items.items())}
            tells = _all_have(self._outer[item] for item in firsts.values())
            added = {key: done if isinstance(key, tuple) else done | tells for key, done in added.items()}
        self._outer.update(added)

    def _list(self, source: Source, turns: list[Values], end: Values) -> Done:
        """All values of an output: what any of them waited for."""
        each = [turn[source] for turn in turns]
        every = {(use, None) for use in self._inside if all((use, None) in done for done in each)}
        return NOTHING.union(every, self._to_outside(end[source]), *map(self._outside_only, each))

    def _to_next(self, done: Done) -> Done:
        """What is complete in an iteration, as the next one sees it."""
        return self._outside_only(done) | {(use, self._name) for use in self._complete(done)}

    def _to_outside(self, done: Done) -> Done:
        """What is complete in the last iteration, as seen from behind the loop."""
        return self._outside_only(done) | {(use, None) for use in self._complete(done)}

    def _complete(self, done: Done) -> list[str]:
        """Uses in the loop of which this and all earlier iterations are complete."""
        return [use for use in self._inside if (use, None) in done and (use, self._name) in done]

    def _outside_only(self, done: Done) -> Done:
        return frozenset(
            (use, loop) for use, loop in done if loop != self._name and (loop is not None or use not in self._inside)
        )


def _all_have(cases: Iterable[Done]) -> Done:
    """What is complete in every one of the cases."""
    return frozenset.intersection(*cases)
