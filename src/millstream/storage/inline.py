"""Arrow rows ↔ the form they have when inlined in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.catalog import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import TableInfo

MOST_ROWS = 256
"""Inserts up to this many rows are inlined: there a commit without a file is the cheaper one."""


def to_rows(data: pa.Table) -> list[tuple[Any, ...]]:
    columns = [_to_storage(field.type, data.column(i).to_pylist()) for i, field in enumerate(data.schema)]
    return list(zip(*columns, strict=True))


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
