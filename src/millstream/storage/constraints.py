"""What a table demands of its rows: NOT NULL, the length of VARCHAR(n) and CHAR(n), a time in every row.

`checked` is called wherever rows enter, in the driver and in Spark's tasks alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Condition, DataError

if TYPE_CHECKING:
    from millstream.catalog.records import TableInfo
    from millstream.schema import Column


def checked(table: TableInfo, data: pa.Table) -> pa.Table:
    """The rows, padded where CHAR(n) says so; raises if one of them is not acceptable."""
    for i, column in enumerate(table.schema.columns):
        _check_nulls(table, column, data.column(i))
        if column.max_length is not None:
            data = data.set_column(i, data.schema.field(i), _fitted(column, column.max_length, data.column(i)))
    return data


def _check_nulls(table: TableInfo, column: Column, values: pa.ChunkedArray) -> None:
    is_time = table.time is not None and table.time.column == column.name
    if values.null_count == 0 or (column.nullable and not is_time):
        return
    row = pc.index(pc.is_null(values), True).as_py() + 1
    error = DataError(
        Condition.NULL_VALUE,
        f"column {column.name!r} of {table.name!r} must not be null",
        detail=f"Row {row} of the insert has no value there."
        + (" It is the time column: every row needs a time." if is_time else ""),
        hint="Give every row a value for it; nothing of this insert was kept.",
    )
    error.refused_rows = values.null_count if is_time else 0
    raise error


def _fitted(column: Column, length: int, values: pa.ChunkedArray) -> pa.ChunkedArray:
    longest = pc.max(pc.utf8_length(values)).as_py() or 0
    if longest > length:
        row = pc.index(pc.greater(pc.utf8_length(values), length), True).as_py() + 1
        raise DataError(
            Condition.VALUE_TOO_LONG,
            f"a value of {longest} characters does not fit column {column.name!r} of type {column.sql_type}",
            detail=f"Row {row} of the insert is the first that is too long.",
            hint="Shorten the value, or declare the column as STRING.",
        )
    return pc.utf8_rpad(values, width=length, padding=" ") if column.padded else values
