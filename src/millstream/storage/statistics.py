"""What the catalogue records of a column: counts and exact bounds, from Arrow data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.catalog.records import ColumnStats, TableInfo
from millstream.errors import Condition, DataError
from millstream.schema import is_nested

if TYPE_CHECKING:
    from millstream.schema import Column


def of_table(table: TableInfo, data: pa.Table) -> dict[int, ColumnStats]:
    """Statistics of the scalar columns, by column id."""
    return {
        column_id: of_column(column, data.column(i))
        for i, (column_id, column) in enumerate(zip(table.column_ids, table.schema.columns, strict=True))
        if not is_nested(column.type)
    }


def of_column(column: Column, values: pa.ChunkedArray) -> ColumnStats:
    nulls = values.null_count
    count = len(values) - nulls
    if pa.types.is_binary(column.type):
        return ColumnStats(count, nulls)
    if not pa.types.is_floating(column.type):
        return ColumnStats(count, nulls, *_bounds(column, values))
    nan = pc.is_nan(values)
    has_nan = bool(pc.any(nan).as_py())
    if has_nan:
        values = pc.if_else(nan, None, values)
    return ColumnStats(count, nulls, *_bounds(column, values), has_nan)


def _bounds(column: Column, values: pa.ChunkedArray) -> tuple[object, object]:
    bounds = pc.min_max(values)
    try:
        return bounds["min"].as_py(), bounds["max"].as_py()
    except (OverflowError, ValueError) as error:
        raise outside_of_time(column, error) from error


def outside_of_time(column: Column, error: Exception) -> DataError:
    return DataError(
        Condition.INVALID_VALUE,
        f"column {column.name!r} holds a time outside of the years 1 to 9999",
        detail=str(error),
        hint="Correct the value; dates and timestamps cover the years 1 to 9999.",
    )
