"""One request's progress through a program, as tagged-token dataflow.

A value carries the iteration vector of its producer as its tag. A node fires when all its slots hold values
of one tag, so different iterations of one loop are in flight at the same time where the data allow it. The
control of a loop switches the carried values of iteration v to the next iteration or out of the loop, as soon
as it is known which: at once in a plain Loop and in the last possible iteration, else when the node that may
leave has completed v, or the chunk of v is formed.

The parts of a walk on several ranks (`cut`) are runs of their own. A value lives where it was produced: that rank
follows it through the loops, with control of its own, and sends it to every rank where a join reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_rt.errors import Internal, InvalidArgument, nearest
from mstar_rt.program.firing import Emission, Firing, Progress, Send
from mstar_rt.program.loops import LoopControl
from mstar_rt.program.matching import Matching, Tag
from mstar_rt.program.program import ROOT, Port, PortSend, Program, ProgramStream
from mstar_rt.program.streams import StreamEnds


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
        self._sends: list[Send] = []
        self._latest: dict[str, Emission] = {}
        self._in_flight: set[Firing] = set()
        self._started = False
        self._abandoned = False
        self._clear()

    def start(self, inputs: Mapping[str, Any]) -> list[Firing]:
        """Begin; returns the firings that are ready. Comes before anything is received.

        Raises: InvalidArgument: an input of the walk is missing, or a name is not one of its inputs.
        """
        assert not self._started, "a run starts once"
        if inputs.keys() != self.program.input_names:
            raise _wrong_inputs(self.program, inputs)
        self._started = True
        self._open(ROOT, ())
        for name, port in self.program.inputs:
            self._read(self.program.ports[port], (), inputs[name])
        return self._progress(False).ready

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
        for index in node.drains:
            self._give_credit(self.program.streams[index], tag[:-1])
        return self._progress(self._loops.finish_item(node.loops[-1] if tag else ROOT, tag))

    def receive(self, kind: str, index: int, tag: Tag, value: Any = None, flag: bool = False) -> Progress:
        """Take what the part of this walk on another rank sent (see Send); the order does not matter."""
        assert self._started, "a run starts before it receives"
        if self._abandoned:
            return Progress()
        finished = False
        if kind == "value":
            self._read_at(self.program.ports[index], tag, value)
        elif kind == "decision":
            self._decide(index, tag, flag)
            finished = self._loops.finish_item(index, tag)
        elif kind == "item":
            stream = self.program.streams[index]
            if flag:
                self._sends.append(self._streams.last_credit(stream, tag[:-1]))
            self._push(stream, tag, value, flag)
        else:
            assert kind == "credit", f"no message is of kind {kind!r}"
            finished = self._take_credit(self.program.streams[index], tag, flag)
        return self._progress(finished)

    def abandon(self) -> None:
        """Drop every value. Firings in flight may still be completed, which yields nothing, as does what arrives."""
        self._abandoned = True
        self._latest.clear()
        self.persisted = {}
        num_turns = self._loops.num_turns
        self._clear()
        self._loops.num_turns = num_turns

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
        """Complete iterations so far by loop name, summed over the runs of a nested loop. A part lists the loops that
        its rank takes part in, and counts for itself: the largest number is the furthest."""
        turns = self._loops.num_turns
        return {loop.name: turns[loop.index] for loop in self.program.loops if loop.num_items}

    @property
    def num_held(self) -> int:
        """Number of values and records held for what is still to come; 0 when the walk is over."""
        return self._matching.num_held + self._loops.num_held + self._streams.num_held

    def _clear(self) -> None:
        self._matching = Matching(self.program.joins)
        self._loops = LoopControl(self.program, self._times, self._matching)
        self._streams = StreamEnds(self.program)

    def _progress(self, finished: bool) -> Progress:
        ready, self._ready = self._ready, []
        emitted, self._emitted = self._emitted, []
        sends, self._sends = self._sends, []
        return Progress(ready, emitted, finished, sends)

    def _deliver(self, port: Port, tag: Tag, value: Any) -> None:
        """A value appears that a node of this rank produced."""
        if port.reads or port.enters:
            self._read(port, tag, value)
        if port.leaves_run:
            for name in port.emits:
                self._emit(name, tag, value)
            for name in port.persists:
                self.persisted[name] = value
            self._send(port.sends, tag, value)
        if port.turns:
            last = self._loops.is_last(port.loop, tag)
            if last is None:
                self._loops.park(port, tag, value)
            else:
                self._switch(port, tag, value, last)

    def _read(self, port: Port, tag: Tag, value: Any) -> None:
        """What this rank reads of a value, here and in the loops that it enters."""
        for join, slot in port.reads:
            for complete_tag, row in self._matching.put(join, slot, tag, value):
                self._fire(join, complete_tag, row)
        for target in port.enters:
            self._read(self.program.ports[target], (*tag, 0), value)

    def _read_at(self, port: Port, tag: Tag, value: Any) -> None:
        """The same, here only: the rank that sends a value sends it to the ports that it enters, too."""
        for join, slot in port.reads:
            for complete_tag, row in self._matching.put(join, slot, tag, value):
                self._fire(join, complete_tag, row)

    def _send(self, sends: tuple[PortSend, ...], tag: Tag, value: Any) -> None:
        for send in sends:
            self._sends.append(Send(send.rank, "value", send.port, tag + send.zeros, value, False, send.moves))

    def _fire(self, index: int, tag: Tag, row: list[Any]) -> None:
        relay_to = self.program.joins[index].relay_to
        if relay_to is not None:
            self._read(self.program.ports[relay_to], (*tag, 0), row[0])
            return
        node = self.program.nodes[index]
        firing = Firing(index, node.name, node.node, tag, dict(zip(node.slots, row, strict=False)), node.order)
        if not node.feeds or self._streams.admit(firing):
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
            for complete_tag, row in self._matching.open(index, tag):
                self._fire(index, complete_tag, row)
        for inner in opening.loops:
            for turn in range(self._loops.num_open_at_once(inner)):
                self._open(inner, (*tag, turn))

    def _decide(self, loop: int, tag: Tag, leave: bool) -> None:
        """It is known whether iteration `tag` is the last one."""
        last, parked = self._loops.decide(loop, tag, leave)
        for rank in self.program.loops[loop].tells:
            self._sends.append(Send(rank, "decision", loop, tag, flag=last))
        opening = self.program.openings[loop + 1]
        if not last and (opening.joins or opening.loops):
            self._open(loop, (*tag[:-1], tag[-1] + 1))
        for port, value in parked:
            self._switch(port, tag, value, last)

    def _switch(self, port: Port, tag: Tag, value: Any, last: bool) -> None:
        ports, around = self.program.ports, tag[:-1]
        for target in port.collects:
            values = self._loops.collect(ports[target], port.loop, tag, value, last)
            if values is not None:
                self._deliver(ports[target], around, values)
        for index in port.streams:
            self._enter_stream(self.program.streams[index], tag, value, last)
        if last:
            for target in port.exits:
                self._deliver(ports[target], around, value)
        elif port.nexts or port.next_sends:
            following = (*around, tag[-1] + 1)
            for target in port.nexts:
                self._read(ports[target], following, value)
            self._send(port.next_sends, following, value)

    def _enter_stream(self, stream: ProgramStream, tag: Tag, value: Any, last: bool) -> None:
        for item_tag, item, is_last in self._streams.enter(stream, tag, value, last):
            if stream.reader_rank is None:
                self._push(stream, item_tag, item, is_last)
            else:
                self._sends.append(Send(stream.reader_rank, "item", stream.index, item_tag, item, is_last))

    def _push(self, stream: ProgramStream, tag: Tag, value: Any, last: bool) -> None:
        for chunk_tag, chunk in self._streams.push(stream, tag, value, last):
            if stream.decides:
                self._decide(stream.consumer, chunk_tag, chunk.final)
            self._read(self.program.ports[stream.chunk], chunk_tag, chunk)

    def _give_credit(self, stream: ProgramStream, around: Tag) -> None:
        """A chunk of the stream was read."""
        if stream.source_rank is None:
            self._hand_out(self._streams.credit(stream, around))
        else:
            send = self._streams.credit_to_send(stream, around)
            if send is not None:
                self._sends.append(send)

    def _take_credit(self, stream: ProgramStream, tag: Tag, no_more: bool) -> bool:
        """Returns whether the walk is over: a stream to another rank is an item of the iteration around it."""
        around = tag[:-1]
        if no_more:
            self._streams.expect(stream, around, tag[-1])
        else:
            self._hand_out(self._streams.credit(stream, around))
        if not self._streams.is_over(stream, around):
            return False
        return self._loops.finish_item(self.program.loops[stream.producer].parent, around)

    def _hand_out(self, firings: list[Firing]) -> None:
        self._in_flight.update(firings)
        self._ready += firings


def _wrong_inputs(program: Program, inputs: Mapping[str, Any]) -> InvalidArgument:
    known, where = [name for name, _ in program.inputs], f"walk {program.walk!r}"
    for name in inputs:
        if name not in known:
            return InvalidArgument(f"{where} has no input {name!r}, {nearest(name, known)}")
    missing = next(name for name in known if name not in inputs)
    return InvalidArgument(f"{where} needs the input {missing!r}, which is missing")


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
