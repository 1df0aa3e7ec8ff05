"""How far rows are away from each other, by time and by rows: slices and lines against what windows really hold.

r  1  2  2  4 |  7  8         the newest two at 7: 4, 7; a row of s that comes at 7 meets these
s  1  3  3  5 |  7  9         passed | the turn
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from millstream.queries.lines import NOWHERE, Line, joined, line_of
from millstream.queries.parcels import Parcel, Rows
from millstream.queries.rulers import ByRows, ByTime
from millstream.queries.slices import Reach, Unit, by_kernel, matched
from tests.unit.test_slices import stream_table

if TYPE_CHECKING:
    from millstream.queries.rulers import Ruler

LONGEST = 9
TIMES = some.lists(some.integers(0, 12), min_size=1, max_size=14)
SIZES = some.lists(some.integers(1, LONGEST), min_size=1, max_size=4, unique=True).map(sorted)


def rows_of(times: list[int]) -> Rows:
    """Rows numbered as they came, any time first."""
    when = np.array(times, np.int64)
    table = pa.table({"k": np.zeros(len(times), np.int64), "t": when})
    return Rows(table, np.arange(len(times)), when, when)


def in_line(rows: Rows, passed: int, mark: int) -> Line:
    old, new = rows.times <= passed, (rows.times > passed) & (rows.times <= mark)
    return line_of(rows.ids[old], rows.times[old]).with_more(rows.ids[new], rows.times[new])


def newest(rows: Rows, size: int, at: int) -> set[int]:
    """The rows of a window of so many rows at an instant."""
    there = sorted((int(t), int(i)) for t, i in zip(rows.times, rows.ids, strict=True) if t <= at)
    return {i for _, i in there[-size:]}


def within(rows: Rows, size: int, at: int) -> set[int]:
    """The same of a window of time."""
    return {int(i) for t, i in zip(rows.times, rows.ids, strict=True) if at - size <= t <= at}


def by_slices(left: Rows, right: Rows, sizes: list[int], rulers: list[Ruler], passed: int, mark: int) -> Any:
    """What units find, for each window; each pair once."""
    found: dict[int, list[tuple[int, int]]] = {size: [] for size in sizes}
    for leaf, (own, other) in enumerate(((left, right), (right, left))):
        active = own.only((own.times > passed) & (own.times <= mark))
        if not len(active):
            continue
        reach = Reach(0, 99, mark, 99, passed)
        for low, high in zip([0, *sizes], sizes, strict=False):
            unit = Unit(
                Parcel(active), leaf, (), reach, low, high, stream_table(), ("k", "t"),
                ruler=rulers[leaf],
            )  # fmt: skip
            small = unit if low % 2 else Unit(**(vars(unit) | {"ruler": unit.ruler.only(unit)}))
            spans = unit.ruler.numbers(unit)
            asked = [any(a <= i <= b for a, b in spans) for i in other.ids]
            pairs = matched(small, other.rows.filter(pa.array(asked)), other.ids[np.array(asked)], by_kernel)
            aways = unit.ruler.away(active, pairs.rows, pairs.mine, pairs.theirs)
            for mine, theirs, away in zip(pairs.mine, pairs.theirs, aways, strict=True):
                pair = (int(active.ids[mine]), int(pairs.rows.ids[theirs]))
                for size in sizes:
                    if away <= size and size >= high:
                        found[size].append(pair if leaf == 0 else pair[::-1])
    return found


@settings(max_examples=150, deadline=None)
@given(left=TIMES, right=TIMES, sizes=SIZES, cut=some.integers(-1, 12), end=some.integers(0, 12))
@pytest.mark.parametrize("window", [newest, within])
def test_slices_find_just_the_pairs_that_windows_hold(
    window: Any, left: list[int], right: list[int], sizes: list[int], cut: int, end: int
) -> None:
    first, second, mark = rows_of(left), rows_of(right), max(cut, end)
    rulers: list[Ruler] = [ByTime(), ByTime()]
    if window is newest:
        lines = in_line(first, cut, mark), in_line(second, cut, mark)
        rulers = [ByRows(lines[0], lines[1]), ByRows(lines[1], lines[0])]
    found = by_slices(first, second, sizes, rulers, cut, mark)
    instants = sorted({int(t) for t in (*first.times, *second.times) if cut < t <= mark})
    before = {int(t) for t in (*first.times, *second.times) if t <= cut}
    for size in sizes:
        seen = {(a, b) for t in before for a in window(first, size, t) for b in window(second, size, t)}
        expected = {(a, b) for t in instants for a in window(first, size, t) for b in window(second, size, t)}
        assert sorted(found[size]) == sorted(expected - seen)


@settings(max_examples=100, deadline=None)
@given(parts=some.lists(some.lists(some.integers(0, 4), max_size=6), max_size=6), kept=some.integers(1, 20))
def test_a_line_tells_where_its_rows_are(parts: list[list[int]], kept: int) -> None:
    line, every, start = Line(), list[tuple[int, int]](), 0
    for number, offsets in enumerate(parts):
        times = np.array([10 * number + o for o in offsets], np.int64)
        ids = np.arange(start, start + len(times))
        start += len(times)
        line = line.with_more(ids, times)
        every += sorted(zip(times.tolist(), ids.tolist(), strict=True))
    short = line.newest(kept)
    places = dict(zip((i for _, i in every), range(len(every)), strict=True))
    asked = np.arange(start + 2)
    gone = {i for _, i in every[:-kept]}
    expected = [NOWHERE if i in gone else places.get(i, NOWHERE) for i in asked.tolist()]
    assert short.places(asked).tolist() == expected
    assert short.end == line.end == len(every)
    if every:
        assert short.lowest(kept) == min(i for _, i in every[-kept:])


def test_rows_that_came_in_order_cost_a_line_nothing() -> None:
    line = Line()
    for start in range(0, 1_000, 100):
        ids = np.arange(start, start + 100)
        line = line.with_more(ids, ids // 7)
    line = line.with_more(np.empty(0, np.int64), np.empty(0, np.int64))
    assert line.bytes == 0
    assert [s.ids for s in line.stretches] == [range(1_000)]
    assert line.numbers(((10, 20), (15, 30))) == ((10, 29),)


def test_spans_that_overlap_are_one() -> None:
    assert joined([(5, 9), (0, 2), (8, 12), (4, 4), (2, 3)]) == [(0, 3), (5, 12)]
