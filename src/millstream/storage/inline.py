"""Arrow rows ↔ the form they have when inlined in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.catalog import types
from millstream.catalog.records import ColumnStats
from millstream.storage.statistics import outside_of_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import TableInfo

MOST_ROWS = 256
MOST_BYTES = 64 * 1024


def is_small(data: pa.Table) -> bool:
    """Whether rows are inlined: up to there a commit without a file is the cheaper one."""
    return bool(data.num_rows <= MOST_ROWS and data.nbytes <= MOST_BYTES)


def to_rows(table: TableInfo, data: pa.Table) -> tuple[list[tuple[Any, ...]], dict[int, ColumnStats]]:
    """The rows in storage form, and the statistics of their columns.

    Plain Python on purpose: for a row or two, Arrow's kernels cost several times as much to call.
    """
    columns, stats = [], {}
    for i, (column_id, column) in enumerate(zip(table.column_ids, table.schema.columns, strict=True)):
        try:
            values = data.column(i).to_pylist()
        except (OverflowError, ValueError) as error:
            raise outside_of_time(column, error) from error
        columns.append(_to_storage(column.type, values))
        stats[column_id] = _stats(column.type, values)
    return list(zip(*columns, strict=True)), stats


def _stats(type_: pa.DataType, values: list[Any]) -> ColumnStats:
    present = [v for v in values if v is not None]
    has_nan = None
    ordered = present
    if pa.types.is_floating(type_):
        ordered = [v for v in present if v == v]
        has_nan = len(ordered) < len(present)
    if pa.types.is_binary(type_) or not ordered:
        return ColumnStats(len(present), len(values) - len(present), has_nan=has_nan)
    return ColumnStats(len(present), len(values) - len(present), min(ordered), max(ordered), has_nan)


def _to_storage(type_: pa.DataType, values: list[Any]) -> list[Any]:
    if pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
        return values
    if pa.types.is_boolean(type_):
        return [None if v is None else int(v) for v in values]
    return [types.encode(v) for v in values]


def from_rows(table: TableInfo, rows: Sequence[tuple[Any, ...]]) -> tuple[pa.Table, pa.Array]:
    """The rows as Arrow, and their row ids (which stand first in each row)."""
    columns = list(zip(*rows, strict=True)) or [()] * (len(table.schema.columns) + 1)
    arrays = [
        pa.array(_from_storage(c.type, values), c.type)
        for c, values in zip(table.schema.columns, columns[1:], strict=True)
    ]
    return pa.table(arrays, schema=table.schema.arrow), pa.array(columns[0], pa.int64())


def _from_storage(type_: pa.DataType, values: Sequence[Any]) -> Sequence[Any]:
    if pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
        return values
    if pa.types.is_boolean(type_):
        return [None if v is None else bool(v) for v in values]
    return [types.decode(type_, v) for v in values]
