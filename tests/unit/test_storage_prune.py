"""Statistics and pruning against brute force: a file with a match is never skipped."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.catalog import types
from millstream.catalog.records import ColumnStats
from millstream.clock import ManualClock
from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ, Column
from millstream.storage import statistics
from millstream.storage.prune import Comparison, Operator, can_match
from tests.recovery import stored

if TYPE_CHECKING:
    from pathlib import Path

EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=200)

FEW = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "é", "\U0001f600", "\uffff", "a\0"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff"]),
    pa.decimal128(5, 2): st.integers(-3, 3).map(lambda i: Decimal(i) / 2),
    pa.date32(): st.integers(-2, 2).map(lambda d: date(1970, 1, 1) + timedelta(d)),
    TIMESTAMP: st.integers(-2, 2).map(lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=s)),
    TIMESTAMP_NTZ: st.integers(-2, 2).map(lambda s: datetime(1970, 1, 1) + timedelta(microseconds=s)),  # noqa: DTZ001
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any], Comparison]:
    type_ = draw(st.sampled_from(list(FEW)))
    values = draw(st.lists(st.none() | FEW[type_], max_size=4))
    operator = draw(st.sampled_from(list(Operator)))
    most = 3 if operator is Operator.IN else 1
    wanted = draw(st.lists(FEW[type_], min_size=1, max_size=most))
    return type_, values, Comparison("c", operator, tuple(wanted))


def is_true(value: Any, comparison: Comparison) -> bool:
    """Spark's comparison: nulls never match, NaN equals itself and is above everything."""
    if value is None:
        return False
    return any(_holds(_order(value), comparison.operator, _order(v)) for v in comparison.values)


def _order(value: Any) -> tuple[int, Any]:
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def _holds(left: Any, operator: Operator, right: Any) -> bool:
    return bool(
        {
            Operator.LT: left < right,
            Operator.LE: left <= right,
            Operator.GT: left > right,
            Operator.GE: left >= right,
        }.get(operator, left == right)
    )


@EXACT
@given(columns())
def test_a_file_that_holds_a_match_is_kept_and_bounds_decide_alone(
    case: tuple[pa.DataType, list[Any], Comparison],
) -> None:
    type_, values, comparison = case
    found = statistics.of_column(Column("c", type_), pa.chunked_array([pa.array(values, type_)]))
    keeps = can_match(found, comparison)
    if any(is_true(v, comparison) for v in values):
        assert keeps
    if not any(v is not None for v in values):
        assert not keeps, "a column of nulls matches nothing"


@pytest.mark.parametrize(
    ("operator", "value", "kept"),
    [("<", 10, False), ("<", 11, True), ("<=", 9, False), ("<=", 10, True), ("=", 9, False), ("=", 15, True),
     ("=", 21, False), (">", 20, False), (">", 19, True), (">=", 21, False), (">=", 20, True)],
)  # fmt: skip
def test_pruning_skips_exactly_what_lies_outside_of_the_bounds(operator: str, value: int, kept: bool) -> None:
    bounds = ColumnStats(values=5, nulls=1, low=10, high=20)
    assert can_match(bounds, Comparison("c", Operator(operator), (value,))) is kept
    assert can_match(bounds, Comparison("c", Operator.IN, (1, 15))) is True
    assert can_match(bounds, Comparison("c", Operator.IN, (1, 25))) is False


@EXACT
@given(columns(), columns())
def test_merged_statistics_are_those_of_all_values(left: Any, right: Any) -> None:
    type_, values, _ = left
    more = list(right[1]) if right[0] == type_ else list(reversed(values))
    column = Column("c", type_)
    parts = [statistics.of_column(column, pa.chunked_array([pa.array(v, type_)])) for v in (values, more)]
    whole = statistics.of_column(column, pa.chunked_array([pa.array(values + more, type_)]))
    merged = parts[0].merged(parts[1])
    assert (merged.values, merged.nulls, merged.low, merged.high) == (
        whole.values,
        whole.nulls,
        whole.low,
        whole.high,
    )
    assert bool(merged.has_nan) == bool(whole.has_nan)


@EXACT
@given(columns())
def test_bounds_survive_their_text(case: Any) -> None:
    type_, values, _ = case
    for value in values:
        if value is not None and not isinstance(value, bytes):
            again = types.decode(type_, types.encode(value))
            assert again == value or (math.isnan(again) and math.isnan(value))
            assert type(again) is type(value)


@EXACT
@given(st.floats(width=32, allow_nan=False))
def test_bounds_of_float_columns_keep_their_own_value(value: float) -> None:
    """0.1 as FLOAT is not 0.1 as DOUBLE: the bound read back must be the value that is stored."""
    found = statistics.of_column(Column("c", pa.float32()), pa.chunked_array([pa.array([value], pa.float32())]))
    low = types.decode(pa.float32(), types.encode(found.low))
    assert pa.scalar(low, pa.float32()) == pa.scalar(value, pa.float32())
    assert can_match(ColumnStats(1, 0, low, low, False), Comparison("c", Operator.EQ, (value,)))


def test_a_scan_skips_the_files_that_cannot_match_and_finds_the_rest(database_path: Path) -> None:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql("CREATE TABLE t (id BIGINT, Name STRING)")
        for i in range(5):
            db.insert("t", [(1000 * i + n, f"{i}-{n:04}") for n in range(300)])
        table = stored.table_of(db._lake, "t")

        def files(*comparisons: Comparison) -> tuple[int, int]:
            found = db._lake.scan(table, db._lake.catalog.current, comparisons)
            return len(found.files), found.skipped_files

        assert files() == (5, 0)
        assert files(Comparison("id", Operator.EQ, (2100,))) == (1, 4)
        assert files(Comparison("ID", Operator.GE, (3000,))) == (2, 3)
        assert files(Comparison("name", Operator.LT, ("1",))) == (1, 4)
        assert files(Comparison("id", Operator.GE, (1000,)), Comparison("name", Operator.LT, ("3",))) == (2, 3)
        assert files(Comparison("id", Operator.IN, (5, 4005, 9999))) == (2, 3)
        assert files(Comparison("id", Operator.EQ, (500,))) == (0, 5)
