"""Drawings: the text as a reader sees it, Mermaid and SVG as their parsers do."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from mstar_rt.errors import InvalidArgument, NotFound
from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphEdge,
    GraphNode,
    Loop,
    Parallel,
    ReceptiveFieldChunkPolicy,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    draw,
)

ENCODE = GraphNode("encode", ("frames",), ("latents",))
SAMPLE = GraphNode("sample", ("mean",), ("actions",))
PREDICT = GraphNode("predict", ("latent", "actions"), ("latent",), engine="kv_cache", cache="predictor")
SCORE = GraphNode("score", ("latent", "goal"), ("cost",))
REFIT = GraphNode("refit", ("actions", "cost"), ("mean",))

GRAPH = WalkGraph(
    nodes=(ENCODE, SAMPLE, PREDICT, SCORE, REFIT),
    walks=(
        Walk("encode", ENCODE, emit=("latents",)),
        Walk(
            "plan",
            Sequential(
                Parallel(
                    ENCODE.bind(outputs={"latents": "latent"}),
                    ENCODE.bind({"frames": "goal_frames"}, alias="encode_goal"),
                ),
                DynamicLoop(
                    "cem",
                    Sequential(
                        SAMPLE, Loop("imagine", PREDICT, "horizon", 32, carry={"latent": "latent"}), SCORE, REFIT
                    ),
                    times=10,
                    carry={"mean": "mean"},
                    collect={"cost": "costs"},
                    leave="refit",
                ),
            ),
            emit=("mean", "costs"),
            persist=("mean",),
            edges=(GraphEdge("encode_goal.latents", "score.goal"),),
        ),
    ),
)

TEXT = """\
walk plan
  inputs:   frames, goal_frames, mean
  emits:    mean, costs
  persists: mean
sequential
├─ parallel
│  ├─ encode: frames -> latents=latent
│  └─ encode_goal (encode): frames=goal_frames -> latents
└─ dynamic loop cem: up to 10 times, left by refit
   │  carries mean
   │  collects costs=[cost]  > emits costs
   ├─ sample: mean -> actions
   ├─ loop imagine: horizon <= 32 times
   │  │  carries latent
   │  └─ predict [predictor]: latent, actions -> latent
   ├─ score: latent, goal<-encode_goal.latents -> cost
   └─ refit: actions, cost -> mean  > emits mean  > persists mean
"""

TALK = GraphNode("talk", ("token",), ("token", "code"))
DECODE = GraphNode("decode", ("codes", "voice"), ("audio",))
PACK = GraphNode("pack", ("audios",), ("packet",))

STREAMED = WalkGraph(
    nodes=(TALK, DECODE, PACK),
    walks=(
        Walk(
            "speak",
            Sequential(
                DynamicLoop("talking", TALK, "steps", 500, carry={"token": "token"}, leave="talk"),
                StreamLoop("codec", DECODE, carry={"voice": "audio"}),
                StreamLoop("packing", PACK, collect={"packet": "packets"}),
            ),
            emit=("audio", "packets"),
            edges=(
                StreamingGraphEdge("talk.code", "decode.codes", ReceptiveFieldChunkPolicy(3, 1, (4, 8))),
                StreamingGraphEdge("decode.audio", "pack.audios", FixedChunkPolicy(2)),
            ),
        ),
    ),
)

STREAMED_TEXT = """\
walk speak
  inputs:   token, voice
  emits:    audio, packets
sequential
├─ dynamic loop talking: up to steps <= 500 times, left by talk
│  │  carries token
│  └─ talk: token -> token, code
├─ stream loop codec: once per chunk of talking, ReceptiveField(left=3, right=1, strides=(4, 8))
│  │  carries voice=audio
│  └─ decode: codes<~talk.code, voice -> audio  > emits audio
└─ stream loop packing: once per chunk of codec, Fixed(k=2)
   │  collects packets=[packet]  > emits packets
   └─ pack: audios<~decode.audio -> packet
"""


def test_text_of_streams() -> None:
    assert draw(STREAMED) == STREAMED_TEXT


def test_mermaid_draws_streams_as_thick_arrows() -> None:
    drawing = draw(STREAMED, format="mermaid")
    assert 'w0n0 ==>|"code, ReceptiveField(left=3, right=1, strides=(4, 8))"| w0n1' in drawing
    assert 'w0n1 ==>|"audio, Fixed(k=2)"| w0n2' in drawing
    assert 'w0n1 -.->|"audio"| w0n1' in drawing
    assert 'subgraph w0l2["stream loop packing: once per chunk of codec, Fixed(k=2)"]' in drawing
    assert drawing.count("==>") == 2


def test_svg_names_streams_and_gives_their_loops_a_color() -> None:
    root = _svg_root(draw(STREAMED, format="svg"))
    shown = {each.text for each in root.iter() if each.tag.endswith("text")}
    assert {"stream loop codec", "stream loop packing", "once per chunk of codec, Fixed(k=2)"} <= shown
    assert {"in codes<~talk.code, voice", "in audios<~decode.audio"} <= shown
    fills = [each.attrib["fill"] for each in root.iter() if each.tag.endswith("rect") and "x" in each.attrib]
    assert fills.count("#eef8f6") == 2


def test_text_of_one_walk() -> None:
    assert draw(GRAPH, "plan") == TEXT


def test_text_of_all_walks() -> None:
    encode = "walk encode\n  inputs:   frames\n  emits:    latents\nencode: frames -> latents  > emits latents\n"
    assert draw(GRAPH) == encode + "\n" + TEXT


def test_nested_sections_of_a_kind_are_drawn_as_one() -> None:
    a, b, c = (ENCODE.bind({"frames": x}, {"latents": y}, alias=x) for x, y in ("ab", "bc", "cd"))
    flat, nested = Sequential(a, b, c), Sequential(a, Sequential(Sequential(b), c))
    flat_text, nested_text = (draw(WalkGraph((ENCODE,), (Walk("w", body, ("d",)),))) for body in (flat, nested))
    assert flat_text == nested_text


def test_mermaid_declares_what_it_connects_and_closes_what_it_opens() -> None:
    lines = draw(GRAPH, format="mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    opened = sum(line.strip().startswith("subgraph ") for line in lines)
    assert opened == sum(line.strip() == "end" for line in lines) == 2 + 2
    declared = {m[1] for line in lines if (m := re.match(r"\s*(?:subgraph )?(w\w+)[\[(]", line))}
    arrows = [m.groups() for line in lines if (m := re.match(r"\s*(w\w+) -\.?-+>(?:\|.*\|)? (w\w+)", line))]
    assert len(arrows) > 10
    assert {end for arrow in arrows for end in arrow} <= declared | {a[1] for a in arrows}
    assert {source for source, _ in arrows} <= declared


def test_mermaid_shows_tensors_and_the_way_back() -> None:
    drawing = draw(GRAPH, "plan", "mermaid")
    assert 'w0n3["predict"]:::cache' in drawing
    assert 'w0n3 -.->|"latent"| w0n3' in drawing
    assert 'w0n1 -->|"latents"| w0n4' in drawing
    assert 'w0n5 -.->|"mean"| w0n2' in drawing


def _svg_root(text: str) -> ET.Element:
    return ET.fromstring(text)  # made here


def _number(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (GRAPH, {"walk encode", "walk plan", "dynamic loop cem", "predict", "encode_goal (encode)"}),
        (STREAMED, {"walk speak", "stream loop codec", "dynamic loop talking", "decode"}),
    ],
)
def test_svg_is_well_formed_and_everything_lies_inside(graph: WalkGraph, expected: set[str]) -> None:
    root = _svg_root(draw(graph, format="svg"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    width, height = _number(root, "width"), _number(root, "height")
    boxes = [each for each in root.iter() if each.tag.endswith("rect") and "x" in each.attrib]
    for box in boxes:
        assert 0 <= _number(box, "x") <= _number(box, "x") + _number(box, "width") <= width
        assert 0 <= _number(box, "y") <= _number(box, "y") + _number(box, "height") <= height
    texts = [each for each in root.iter() if each.tag.endswith("text")]
    for each in texts:
        assert 0 <= _number(each, "x") <= _number(each, "x") + 7.2 * len(each.text or "") <= width
        assert 0 <= _number(each, "y") <= height
    assert expected <= {each.text for each in texts}
    assert "http" not in draw(graph, format="svg").replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("graph", [GRAPH, STREAMED])
def test_svg_boxes_are_nested_or_apart(graph: WalkGraph) -> None:
    root = _svg_root(draw(graph, graph.walks[-1].name, "svg"))
    boxes = []
    for e in root.iter():
        if e.tag.endswith("rect") and "x" in e.attrib:
            x, y, width, height = (_number(e, name) for name in ("x", "y", "width", "height"))
            boxes.append((x, y, x + width, y + height))
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            inside = a[0] <= b[0] and a[1] <= b[1] and b[2] <= a[2] and b[3] <= a[3]
            assert apart or inside


@pytest.mark.parametrize("name", ['<&">', "a]b|c", "größe", "x;y#1"])
def test_any_name_can_be_drawn(name: str) -> None:
    node = GraphNode(name, (f"in{name}",), (f"out{name}",))
    graph = WalkGraph((node,), (Walk(name, Loop(f"loop{name}", node, 2), emit=(f"out{name}",)),))
    assert name in draw(graph)
    texts = {e.text for e in _svg_root(draw(graph, format="svg")).iter() if e.tag.endswith("text")}
    assert {name, f"walk {name}", f"loop loop{name}", f"in in{name}"} <= texts
    for quoted in re.findall(r'"[^\n]*?"', draw(graph, format="mermaid")):
        without_codes = re.sub(r"#\d+;", "", quoted[1:-1])
        assert not set(without_codes) & set('"<>&;#|')


def test_many_names_are_wrapped_not_cut() -> None:
    names = tuple(f"a_rather_long_tensor_name_{k}" for k in range(12))
    node = GraphNode("wide", names, ("y",))
    drawing = draw(WalkGraph((node,), (Walk("w", node, emit=("y",)),)), format="svg")
    assert all(name in drawing for name in names)
    assert _number(_svg_root(drawing), "width") < 600


def test_unknown_walk_and_format() -> None:
    with pytest.raises(NotFound, match="did you mean 'plan'"):
        draw(GRAPH, "plans")
    with pytest.raises(InvalidArgument, match="unknown drawing format 'svgg', did you mean 'svg'"):
        draw(GRAPH, "plan", "svgg")
