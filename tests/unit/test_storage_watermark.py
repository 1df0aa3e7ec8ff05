"""A stream's time: what is late depends on the rows before, not on how inserts are cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.catalog import streams
from millstream.catalog.records import StreamState
from millstream.clock import ManualClock
from millstream.storage import watermark

if TYPE_CHECKING:
    from pathlib import Path

EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=300)
TIMES = st.lists(st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 1]), max_size=12)


def row_by_row(times: list[int], delay: int, advanced: int | None) -> tuple[int | None, int]:
    """The definition: a row is late if its time is below the watermark made by the rows before it."""
    largest: int | None = None
    late = 0
    for time in times:
        marks = [m for m in (None if largest is None else largest - delay, advanced) if m is not None]
        late += bool(marks) and time < max(marks)
        largest = time if largest is None else max(largest, time)
    return largest, late


@EXACT
@given(TIMES, st.integers(0, 3), st.none() | st.integers(-5, 5), st.lists(st.integers(0, 12), max_size=4))
def test_late_rows_are_counted_row_by_row_however_inserts_are_cut(
    times: list[int], delay: int, advanced: int | None, cuts: list[int]
) -> None:
    state = StreamState(advanced_to=advanced)
    edges = [0, *sorted(min(c, len(times)) for c in cuts), len(times)]
    for start, end in itertools.pairwise(edges):
        state = watermark.after_rows(state, delay, np.array(times[start:end], dtype=np.int64), arrival=False)
    largest, late = row_by_row(times, delay, advanced)
    assert (state.max_time, state.late_rows, state.received_rows) == (largest, late, len(times))


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_a_streams_counters_do_not_depend_on_the_cut(database_path: Path, cut: int) -> None:
    times = [10, 20, 4, 16, 15, 30, 24, 25]
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql("CREATE STREAM s (ts BIGINT) TIMESTAMP BY ts WATERMARK INTERVAL 5")
        for start in range(0, len(times), cut):
            db.insert("s", [(t,) for t in times[start : start + cut]])
        with db._lake.catalog.read() as connection:
            state = streams.load(connection, db._lake.catalog.tables()["s"].id)
    assert (state.max_time, state.late_rows, state.received_rows) == (30, 2, 8)
    assert state.watermark(5) == 25


def test_the_watermark_is_the_later_of_rows_and_advance() -> None:
    assert StreamState().watermark(5) is None
    assert StreamState(max_time=10).watermark(5) == 5
    assert StreamState(advanced_to=7).watermark(5) == 7
    assert StreamState(max_time=10, advanced_to=7).watermark(5) == 7
    assert StreamState(max_time=20, advanced_to=7).watermark(5) == 15


def test_arrival_time_makes_no_row_late() -> None:
    state = watermark.after_rows(StreamState(max_time=10), 0, np.array([3, 4]), arrival=True)
    assert (state.max_time, state.late_rows, state.received_rows) == (10, 0, 2)
