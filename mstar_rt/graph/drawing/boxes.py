"""Boxes that know their size and draw themselves as SVG: text cards, stacks, rows and frames. All sizes in
pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

FONT_SIZE = 12
CHAR_WIDTH = 7.25  # of a monospace font of that size, rounded up
LINE_HEIGHT = 17
PADDING = 10
GAP = 26

INK = "#22303c"
FAINT = "#6b7a88"


@dataclass(frozen=True)
class Box:
    """`draw(x, y)` yields SVG elements with the top left corner there; `center` is where arrows meet it, from
    left."""

    width: float
    height: float
    center: float
    draw: Callable[[float, float], Iterator[str]]


@dataclass(frozen=True)
class Line:
    text: str
    color: str = INK
    bold: bool = False


def card(lines: Sequence[Line], fill: str, stroke: str, radius: int = 6) -> Box:
    """Lines of text in a rectangle."""
    width = max(text_width(line.text) for line in lines) + 2 * PADDING
    height = LINE_HEIGHT * len(lines) + PADDING

    def draw(x: float, y: float) -> Iterator[str]:
        yield rectangle(x, y, width, height, fill, stroke, radius)
        for index, line in enumerate(lines):
            yield text(x + PADDING, y + PADDING / 2 + LINE_HEIGHT * (index + 0.75), line)

    return Box(width, height, width / 2, draw)


def stack(boxes: Sequence[Box]) -> Box:
    """One below the other, their centres aligned, an arrow from each to the next."""
    center = max(box.center for box in boxes)
    width = center + max(box.width - box.center for box in boxes)
    height = sum(box.height for box in boxes) + GAP * (len(boxes) - 1)

    def draw(x: float, y: float) -> Iterator[str]:
        for index, box in enumerate(boxes):
            if index:
                yield arrow([(x + center, y - GAP), (x + center, y)])
            yield from box.draw(x + center - box.center, y)
            y += box.height + GAP

    return Box(width, height, center, draw)


def row(boxes: Sequence[Box]) -> Box:
    """Side by side between two bars: what comes in goes to all, what follows waits for all."""
    bar = 16
    inner = max(box.height for box in boxes)
    width = sum(box.width for box in boxes) + GAP * (len(boxes) - 1)

    def draw(x: float, y: float) -> Iterator[str]:
        left, bottom = x, y + inner + 2 * bar
        for edge in (y, bottom):
            yield f'<line x1="{x:g}" y1="{edge:g}" x2="{x + width:g}" y2="{edge:g}" stroke="{INK}" stroke-width="3"/>'
        for box in boxes:
            top = y + bar + (inner - box.height) / 2
            middle = left + box.center
            yield arrow([(middle, y), (middle, top)])
            yield arrow([(middle, top + box.height), (middle, bottom)])
            yield from box.draw(left, top)
            left += box.width + GAP

    return Box(width, inner + 2 * bar, width / 2, draw)


def frame(inner: Box, title: Sequence[Line], fill: str, stroke: str, turns: bool) -> Box:
    """A titled box around another; `turns` adds the arrow from its end back to its beginning."""
    head = LINE_HEIGHT * len(title) + PADDING
    side = 2 * PADDING
    free = side + (2 * PADDING if turns else 0)
    width = max(inner.width + side + free, max(text_width(line.text) for line in title) + 2 * PADDING)
    left = side + (width - inner.width - side - free) / 2
    foot = 2 * PADDING
    height = head + foot + inner.height + foot

    def draw(x: float, y: float) -> Iterator[str]:
        yield rectangle(x, y, width, height, fill, stroke, 10)
        for index, line in enumerate(title):
            yield text(x + PADDING, y + LINE_HEIGHT * (index + 1), line)
        top, middle = y + head + foot, x + left + inner.center
        if turns:
            bottom, right = top + inner.height, x + left + inner.width + side
            turn = [(middle, bottom), (middle, bottom + PADDING), (right, bottom + PADDING)]
            yield arrow([*turn, (right, top - PADDING), (middle, top - PADDING), (middle, top)], dashed=True)
        yield from inner.draw(x + left, top)

    return Box(width, height, left + inner.center, draw)


def text_width(content: str) -> float:
    return CHAR_WIDTH * len(content)


def text(x: float, y: float, line: Line) -> str:
    weight = ' font-weight="bold"' if line.bold else ""
    return f'<text xml:space="preserve" x="{x:g}" y="{y:g}" fill="{line.color}"{weight}>{escape(line.text)}</text>'


def rectangle(x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def arrow(points: Sequence[tuple[float, float]], dashed: bool = False) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{FAINT}"{dashes} marker-end="url(#arrow)"/>'
