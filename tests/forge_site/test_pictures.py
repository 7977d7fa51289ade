"""Layout and timeline: pure, so proven on any graph."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_site import layout
from forge_site.looks import Look
from forge_site.pictures import Span, short, timeline

Edges = tuple[tuple[int, int], ...]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges]:
    number = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, number - 1), st.integers(0, number - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = draw(st.sets(pairs, max_size=60)) if number > 1 else set()
    return number, tuple(sorted(edges))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_every_graph_is_drawn_without_overlap_and_from_left_to_right(graph: tuple[int, Edges]) -> None:
    number, edges = graph
    drawn = layout.arrange(number, edges)

    assert all(drawn.layers[a] < drawn.layers[b] for a, b in edges)
    for layer in range(drawn.width):
        rows = sorted(row for row, its in zip(drawn.rows, drawn.layers, strict=True) if its == layer)
        assert all(lower - upper > 0.999 for upper, lower in pairwise(rows))
    for (source, target), route in drawn.routes.items():
        assert [layer for layer, _ in route] == list(range(drawn.layers[source], drawn.layers[target] + 1))
        assert route[0][1] == drawn.rows[source]
        assert route[-1][1] == drawn.rows[target]
        assert all(row > -0.001 for _, row in route)


def test_the_same_graph_is_drawn_the_same() -> None:
    edges = ((0, 2), (1, 2), (0, 3), (2, 4))

    assert layout.arrange.__wrapped__(5, edges) == layout.arrange.__wrapped__(5, edges)


def test_a_cycle_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="cycle"):
        layout.arrange(2, ((0, 1), (1, 0)))


def test_a_chain_is_a_straight_line() -> None:
    drawn = layout.arrange(4, ((0, 1), (1, 2), (2, 3)))

    assert drawn.layers == [0, 1, 2, 3]
    assert set(drawn.rows) == {0.0}


LOOK = Look("running", "active", "run")
START = datetime(2026, 11, 29, 12, tzinfo=UTC)


def span(row: str, start: int, end: int | None) -> Span:
    return Span(row, 1, LOOK, START + timedelta(seconds=start), None if end is None else START + timedelta(seconds=end))


def test_a_timeline_shows_overlap_and_lets_open_bars_end_now() -> None:
    drawn = timeline([span("a", 0, 10), span("b", 5, None), span("a", 10, 20)], START + timedelta(seconds=20))

    assert drawn is not None
    assert drawn.peak == 2
    first, second, third = drawn.bars
    assert first.y == third.y != second.y
    assert second.x < first.x + first.width  # they overlap in time, so in the picture
    assert second.x + second.width == pytest.approx(drawn.width)


def test_touching_ends_do_not_overlap() -> None:
    drawn = timeline([span("a", 0, 10), span("b", 10, 20)], START + timedelta(seconds=20))

    assert drawn is not None
    assert drawn.peak == 1


def test_nothing_started_is_no_timeline() -> None:
    assert timeline([], START) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (3601, "1 h 1 s"),
        (200000, "2 d 7 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, words: str) -> None:
    assert short(timedelta(seconds=seconds)) == words
