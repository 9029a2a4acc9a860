"""Streams in a run by example: chunks, backpressure, and the two ends on different ranks."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_rt.graph import (
    ChunkPolicy,
    DynamicLoop,
    FixedChunkPolicy,
    GraphNode,
    Loop,
    Parallel,
    ReceptiveFieldChunkPolicy,
    Section,
    Sequential,
    StreamChunk,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    bind_walk,
)
from mstar_rt.program import Firing, Program, Progress, Send, WalkRun, compile_walk, cut

TALK = GraphNode("talk", ("x",), ("x",))
VOCODE = GraphNode("vocode", ("codes",), ("sound",))


def speech(
    num_items: int,
    policy: ChunkPolicy | None = None,
    bound: int = 2,
    talk: Section | None = None,
) -> Program:
    talk = talk or Loop("turn", TALK, num_items, carry={"x": "x"})
    edge = StreamingGraphEdge("talk.x", "vocode.codes", policy or FixedChunkPolicy(2), bound)
    walk = Walk("w", Sequential(talk, StreamLoop("speak", VOCODE)), emit=("sound",), edges=(edge,))
    nodes = {placed.use.node.name: placed.use.node for placed in bind_walk(walk).uses}
    return compile_walk(WalkGraph(tuple(nodes.values()), (walk,)), "w")


def talk_once(run: WalkRun, firing: Firing, leave: bool = False) -> Progress:
    assert firing.name == "talk"
    return run.complete(firing, {"x": firing.inputs["x"] + 1}, leave)


def names(ready: list[Firing]) -> list[tuple[str, tuple[int, ...]]]:
    return [(firing.name, firing.iteration) for firing in ready]


def deliver(run: WalkRun, send: Send) -> Progress:
    return run.receive(send.kind, send.index, send.tag, send.value, send.flag)


def test_the_program_of_a_stream() -> None:
    program = speech(5)
    (stream,) = program.streams
    assert (program.nodes[stream.source_node].name, program.nodes[stream.reader_node].name) == ("talk", "vocode")
    assert (program.loops[stream.producer].name, program.loops[stream.consumer].name) == ("turn", "speak")
    assert (stream.policy, stream.max_ready_chunks, stream.decides) == (FixedChunkPolicy(2), 2, True)
    speak = program.loops[stream.consumer]
    assert (speak.times, speak.limit, speak.dynamic, speak.is_stream) == (None, 6, True, True)
    assert (program.nodes[0].feeds, program.nodes[0].drains) == ((0,), ())
    assert (program.nodes[1].feeds, program.nodes[1].drains) == ((), (0,))
    (edge,) = [edge for edge in program.edges if edge.target == 1]
    assert (edge.source, edge.source_slot, edge.target_slot, edge.kinds) == (0, "x", "codes", ("stream",))


def test_chunks_come_while_the_producer_runs_and_the_last_one_says_so() -> None:
    run = WalkRun(speech(5, bound=9))
    ready, chunks = run.start({"x": 0}), []
    for turn in range(5):
        talk = ready.pop(0)
        progress = talk_once(run, talk)
        chunks += [firing for firing in progress.ready if firing.name == "vocode"]
        ready += [firing for firing in progress.ready if firing.name == "talk"]
        assert len(chunks) == (turn + 1) // 2 + (turn == 4)
    assert [chunk.inputs["codes"] for chunk in chunks] == [
        StreamChunk((1, 2), 0, 0, 2, 0, final=False),
        StreamChunk((3, 4), 2, 0, 2, 0, final=False),
        StreamChunk((5,), 4, 0, 1, 0, final=True),
    ]
    finished = [run.complete(chunk, {"sound": 0}).finished for chunk in chunks]
    assert (finished, run.num_held) == ([False, False, True], 0)
    assert run.num_iterations == {"turn": 5, "speak": 3}


def test_a_producer_that_leaves_early_ends_its_stream() -> None:
    loop = DynamicLoop("turn", TALK, 9, carry={"x": "x"}, leave="talk")
    run = WalkRun(speech(9, ReceptiveFieldChunkPolicy(1, 2, (1,)), 9, talk=loop))
    (talk,) = run.start({"x": 0})
    (talk,) = talk_once(run, talk).ready
    chunks = talk_once(run, talk, leave=True).ready
    assert [chunk.inputs["codes"] for chunk in chunks] == [
        StreamChunk((1, 2), 0, 0, 1, 1, final=False),
        StreamChunk((1, 2), 0, 1, 1, 0, final=True),
    ]


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_the_source_waits_for_the_reader(bound: int) -> None:
    run = WalkRun(speech(12, bound=bound))
    ready, waiting = run.start({"x": 0}), []
    for _ in range(2 * bound):  # so many items are allowed
        (talk,) = (firing for firing in ready if firing.name == "talk")
        ready = talk_once(run, talk).ready
        waiting += [firing for firing in ready if firing.name == "vocode"]
    assert len(waiting) == bound
    assert "talk" not in {firing.name for firing in ready}
    assert run.in_flight == bound
    released = run.complete(waiting.pop(0), {"sound": 0}).ready
    assert names(released) == [("talk", (2 * bound,))]


def test_a_map_is_let_run_in_order_and_may_end_out_of_order() -> None:
    each = GraphNode("talk", ("x",), ("x",))
    run = WalkRun(speech(5, bound=1, talk=Loop("turn", each, 5)))
    second, first = reversed(run.start({"x": 0}))
    assert names([first, second]) == [("talk", (0,)), ("talk", (1,))]
    assert run.complete(second, {"x": "b"}).ready == []
    (vocode,) = run.complete(first, {"x": "a"}).ready
    assert vocode.inputs["codes"].items == ("a", "b")
    third, fourth = run.complete(vocode, {"sound": 0}).ready
    assert names([third, fourth]) == [("talk", (2,)), ("talk", (3,))]


def test_what_reads_no_chunk_runs_once_per_chunk_as_well() -> None:
    mark = GraphNode("mark", ("voice",), ("marks",))
    body = Parallel(VOCODE, mark)
    walk_edges = (StreamingGraphEdge("talk.x", "vocode.codes", FixedChunkPolicy(1), 9),)
    talk = Loop("turn", TALK, 2, carry={"x": "x"})
    walk = Walk("w", Sequential(talk, StreamLoop("speak", body)), emit=("sound", "marks"), edges=walk_edges)
    program = compile_walk(WalkGraph((TALK, VOCODE, mark), (walk,)), "w")
    run = WalkRun(program)
    ready = run.start({"x": 0, "voice": 1})
    assert names(ready) == [("talk", (0,)), ("mark", (0,))]
    assert names(talk_once(run, ready[0]).ready) == [("mark", (1,)), ("vocode", (0,)), ("talk", (1,))]


def split(program: Program, *node_ranks: int) -> list[WalkRun]:
    return [WalkRun(cut(program, node_ranks, rank)) for rank in sorted(set(node_ranks))]


def test_items_one_way_and_credits_the_other() -> None:
    source, reader = split(speech(5, bound=1), 0, 1)
    (talk,) = source.start({"x": 0})
    assert reader.start({}) == []
    first = talk_once(source, talk)
    second = talk_once(source, first.ready[0])
    assert second.ready == [], "one chunk is formed and not read"
    items = first.sends + second.sends
    assert [(s.rank, s.kind, s.tag, s.value, s.flag) for s in items] == [
        (1, "item", (0,), 1, False),
        (1, "item", (1,), 2, False),
    ]
    assert deliver(reader, items[1]).ready == []
    (vocode,) = deliver(reader, items[0]).ready
    assert vocode.inputs["codes"].items == (1, 2)
    (credit,) = reader.complete(vocode, {"sound": 0}).sends
    assert (credit.rank, credit.kind, credit.tag, credit.value, credit.flag) == (0, "credit", (0,), None, False)
    assert names(deliver(source, credit).ready) == [("talk", (2,))]


def test_the_rank_of_the_source_ends_when_its_last_credit_is_there() -> None:
    """However the end of the stream, the items before it and the credits overtake one another."""
    source, reader = split(speech(3, FixedChunkPolicy(1), bound=3), 0, 1)
    (talk,) = source.start({"x": 0})
    reader.start({})
    sends: list[Send] = []
    for _ in range(3):
        progress = talk_once(source, talk)
        sends += progress.sends
        talk = progress.ready[0] if progress.ready else talk
    assert not progress.finished
    assert [send.flag for send in sends] == [False, False, True]
    (first,) = deliver(reader, sends[0]).ready
    early = deliver(reader, sends[2])  # the last item, before the second
    assert early.ready == []
    (closing,) = early.sends
    assert (closing.kind, closing.tag, closing.flag) == ("credit", (0,), True)
    assert reader.complete(first, {"sound": 0}).sends == [], "the source needs no credit any more"
    assert deliver(source, closing).finished
    assert source.num_held == 0
    second, third = deliver(reader, sends[1]).ready
    assert not reader.complete(second, {"sound": 0}).finished
    assert reader.complete(third, {"sound": 0}).finished
    assert reader.num_held == 0


def test_a_credit_that_comes_after_the_last_one_counts() -> None:
    source, reader = split(speech(2, FixedChunkPolicy(1), bound=2), 0, 1)
    (talk,) = source.start({"x": 0})
    reader.start({})
    first = talk_once(source, talk)
    (vocode,) = deliver(reader, first.sends[0]).ready
    (credit,) = reader.complete(vocode, {"sound": 0}).sends
    last = talk_once(source, first.ready[0])
    (closing,) = deliver(reader, last.sends[0]).sends
    assert (closing.tag, closing.flag) == ((1,), True)
    assert not deliver(source, closing).finished
    assert deliver(source, credit).finished


def test_a_rank_without_a_reader_is_told_and_one_with_a_reader_knows() -> None:
    """Both codecs read the same loop; `shape` is on a rank of its own, inside the same stream loop."""
    other = GraphNode("other", ("codes",), ("noise",))
    blend = GraphNode("shape", ("noise", "voice"), ("sound",))
    body = Sequential(Parallel(VOCODE.bind(outputs={"sound": "rough"}), other), blend)
    policy = FixedChunkPolicy(1)
    edges = tuple(StreamingGraphEdge("talk.x", f"{end}.codes", policy, 9) for end in ("vocode", "other"))
    walk = Walk(
        "w",
        Sequential(Loop("turn", TALK, 2, carry={"x": "x"}), StreamLoop("speak", body)),
        emit=("rough", "sound"),
        edges=edges,
    )
    program = compile_walk(WalkGraph((TALK, VOCODE, other, blend), (walk,)), "w")
    assert [s.decides for s in program.streams] == [True, False]
    parts = [cut(program, [0, 1, 2, 3], rank) for rank in range(4)]
    speak = program.streams[0].consumer
    assert [part.loops[speak].tells for part in parts] == [(), (3,), (), ()]
    assert [part.loops[speak].num_items for part in parts] == [0, 1, 1, 2]
    assert [[s.decides for s in part.streams] for part in parts] == [
        [False, False], [True, False], [False, True], [False, False],
    ]  # fmt: skip


def test_abandon_drops_what_is_held_back() -> None:
    run = WalkRun(speech(9, bound=1))
    (talk,) = run.start({"x": 0})
    (talk,) = talk_once(run, talk).ready
    (vocode,) = talk_once(run, talk).ready
    assert run.num_held > 0
    run.abandon()
    assert run.num_held == 0
    progress = run.complete(vocode, {"sound": 0})
    assert (progress.ready, progress.finished, run.in_flight) == ([], False, 0)


def test_a_stream_in_every_iteration_of_an_outer_loop() -> None:
    talk = Loop("turn", TALK, 3, carry={"x": "x"})
    body: Any = Sequential(talk, StreamLoop("speak", VOCODE))
    walk = Walk(
        "w",
        Loop("outer", body, 2),
        emit=("sound",),
        edges=(StreamingGraphEdge("talk.x", "vocode.codes", FixedChunkPolicy(2), 1),),
    )
    run = WalkRun(compile_walk(WalkGraph((TALK, VOCODE), (walk,)), "w"))
    ready, chunks = run.start({"x": 0}), {}
    while ready:
        firing = ready.pop()
        if firing.name == "vocode":
            chunks[firing.iteration] = firing.inputs["codes"].items
            progress = run.complete(firing, {"sound": 0})
        else:
            progress = talk_once(run, firing)
        ready += progress.ready
    assert chunks == {(turn, 0): (1, 2) for turn in range(2)} | {(turn, 1): (3,) for turn in range(2)}
    assert (progress.finished, run.num_held) == (True, 0)
