"""Pictures of a graph as numbers, which templates turn into inline SVG: the graph itself, and its attempts over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forge_site import layout
from forge_site.looks import Look

NODE_WIDTH, NODE_HEIGHT = 184, 46
COLUMN, ROW, MARGIN = 238, 64, 12
LETTERS = 20  # of a key that fit into a node


@dataclass(frozen=True)
class Box:
    id: int
    key: str
    title: str
    state: str
    look: Look
    x: int
    y: int

    @property
    def label(self) -> str:
        return self.key if len(self.key) <= LETTERS else f"{self.key[: LETTERS - 1]}…"


@dataclass(frozen=True)
class Line:
    source: int
    path: str
    met: bool


@dataclass(frozen=True)
class Picture:
    boxes: list[Box]
    lines: list[Line]
    width: int
    height: int


@dataclass(frozen=True)
class Vertex:
    """What the picture needs of a node."""

    id: int
    key: str
    title: str
    state: str
    look: Look


def draw(vertices: Sequence[Vertex], edges: Iterable[tuple[int, int]]) -> Picture:
    """``edges`` by id. Boxes keep the given (topological) order, so that Tab follows the work."""
    index = {vertex.id: place for place, vertex in enumerate(vertices)}
    pairs = sorted({(index[a], index[b]) for a, b in edges if a in index and b in index})
    arranged = layout.arrange(len(vertices), tuple(pairs))
    boxes = [
        Box(v.id, v.key, v.title, v.state, v.look, _x(arranged.layers[n]), _y(arranged.rows[n]))
        for n, v in enumerate(vertices)
    ]
    lines = [
        Line(vertices[source].id, _path(route), vertices[source].look.tone == "ok")
        for (source, _), route in arranged.routes.items()
    ]
    width = (max(arranged.width, 1) - 1) * COLUMN + NODE_WIDTH + 2 * MARGIN
    passed = [row for route in arranged.routes.values() for _, row in route]
    height = _y(max([arranged.height - 1, *passed, 0])) + NODE_HEIGHT + MARGIN
    return Picture(boxes, lines, width, height)


def _x(layer: int) -> int:
    return MARGIN + layer * COLUMN


def _y(row: float) -> int:
    return round(MARGIN + row * ROW)


def _path(route: list[tuple[int, float]]) -> str:
    """A smooth line from the right side of a box to the left side of the next, straight past the columns between."""
    middle = NODE_HEIGHT // 2
    (layer, row), *rest = route
    parts = [f"M{_x(layer) + NODE_WIDTH} {_y(row) + middle}"]
    for number, (to_layer, to_row) in enumerate(rest):
        start, end = _x(to_layer - 1) + NODE_WIDTH, _x(to_layer)
        bend = (start + end) // 2
        parts.append(f"C{bend} {_y(row) + middle} {bend} {_y(to_row) + middle} {end} {_y(to_row) + middle}")
        if number < len(rest) - 1:
            parts.append(f"h{NODE_WIDTH}")
        row = to_row
    return "".join(parts)


# --- time ------------------------------------------------------------------------------------------------------------

TIMELINE_WIDTH, LABEL_WIDTH, BAR_ROW = 1000, 190, 24
TICKS = [timedelta(seconds=s) for s in (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 86400, 7 * 86400)]


@dataclass(frozen=True)
class Span:
    """One attempt on the clock; ``end`` None: it still runs."""

    row: str
    number: int
    look: Look
    start: datetime
    end: datetime | None


@dataclass(frozen=True)
class Bar:
    x: float
    y: int
    width: float
    number: int
    look: Look
    start: datetime
    end: datetime | None


@dataclass(frozen=True)
class Timeline:
    bars: list[Bar]
    labels: list[tuple[int, str]]
    ticks: list[tuple[float, str]]
    width: int
    height: int
    peak: int


def timeline(spans: Sequence[Span], now: datetime) -> Timeline | None:
    """One row per node in the order of first start; None when nothing has started."""
    if not spans:
        return None
    begin = min(span.start for span in spans)
    end = max(max(span.end or now for span in spans), begin + timedelta(seconds=1))
    scale = (TIMELINE_WIDTH - LABEL_WIDTH) / (end - begin).total_seconds()
    rows: dict[str, int] = {}
    bars = []
    for span in sorted(spans, key=lambda s: (s.start, s.row)):
        y = rows.setdefault(span.row, len(rows)) * BAR_ROW
        x = LABEL_WIDTH + (span.start - begin).total_seconds() * scale
        width = max(((span.end or now) - span.start).total_seconds() * scale, 2)
        bars.append(Bar(round(x, 1), y, round(width, 1), span.number, span.look, span.start, span.end))
    labels = [(n * BAR_ROW, key if len(key) <= 24 else f"{key[:23]}…") for key, n in rows.items()]
    ticks = [(round(LABEL_WIDTH + at.total_seconds() * scale, 1), text) for at, text in _ticks(end - begin)]
    return Timeline(bars, labels, ticks, TIMELINE_WIDTH, len(rows) * BAR_ROW + 22, _peak(spans, now))


def _peak(spans: Sequence[Span], now: datetime) -> int:
    """How many ran at once at most. An end and a start at the same moment do not overlap."""
    steps = sorted([(s.start, 1) for s in spans] + [(s.end or now, -1) for s in spans])
    running = peak = 0
    for _, step in steps:
        running += step
        peak = max(peak, running)
    return peak


def _ticks(length: timedelta) -> list[tuple[timedelta, str]]:
    step = next((tick for tick in TICKS if length / tick <= 7), TICKS[-1])
    return [(step * n, short(step * n)) for n in range(int(length / step) + 1)]


def short(length: timedelta) -> str:
    """`0`, `45 s`, `3 min`, `1 h 20 min`, `2 d 4 h`: two units at most."""
    seconds = int(length.total_seconds())
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts = []
    for size, name in units:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"
