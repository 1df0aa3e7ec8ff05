"""Arrow types and values ↔ the text that the DuckLake catalogue holds.

Types are flattened: a nested column is a row for itself and one for each child, linked by
`parent_column`. Values (the statistics' bounds) are text that both DuckDB and we parse back exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCALARS: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "varchar",
    pa.binary(): "blob",
    pa.date32(): "date",
    TIMESTAMP: "timestamptz",
    TIMESTAMP_NTZ: "timestamp",
}
SCALARS_BY_NAME = {name: type_ for type_, name in SCALARS.items()}
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """One row of `ducklake_column`, top-level or nested."""

    column_id: int
    parent: int | None
    name: str
    type: str


def type_name(type_: pa.DataType) -> str:
    """DuckLake's name of a type; nested ones are named by their outermost shape."""
    if type_ in SCALARS:
        return SCALARS[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_map(type_):
        return "map"
    return "struct" if pa.types.is_struct(type_) else "list"


def children(type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The named parts of a nested type, as DuckLake names them."""
    if pa.types.is_struct(type_):
        return [(f.name, f.type) for f in type_]
    if pa.types.is_map(type_):
        return [("key", type_.key_type), ("value", type_.item_type)]
    if pa.types.is_list(type_):
        return [("element", type_.value_type)]
    return []


def flatten(name: str, type_: pa.DataType, first_id: int, parent: int | None = None) -> list[FlatColumn]:
    """A column and all of its parts, numbered in pre-order from `first_id`."""
    flat = [FlatColumn(first_id, parent, name, type_name(type_))]
    for child_name, child_type in children(type_):
        flat += flatten(child_name, child_type, first_id + len(flat), first_id)
    return flat


def unflatten(column: FlatColumn, parts: dict[int | None, list[FlatColumn]]) -> pa.DataType:
    """The Arrow type of a column, given the rows of all columns by their parent."""
    nested = parts.get(column.column_id, [])
    match column.type:
        case "list":
            return pa.list_(unflatten(nested[0], parts))
        case "map":
            return pa.map_(unflatten(nested[0], parts), unflatten(nested[1], parts))
        case "struct":
            return pa.struct([pa.field(c.name, unflatten(c, parts)) for c in nested])
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", column.type):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return SCALARS_BY_NAME[column.type]


def with_field_ids(field: pa.Field, first_id: int) -> pa.Field:
    """The field with Parquet field ids on itself and its parts, numbered as `flatten` does."""
    return _number(field, iter(range(first_id, first_id + 1_000_000)))


def _number(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    metadata = {FIELD_ID: str(next(ids)).encode()}
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_number(f, ids) for f in type_])
    elif pa.types.is_map(type_):
        type_ = pa.map_(_number(type_.key_field, ids), _number(type_.item_field, ids))
    elif pa.types.is_list(type_):
        type_ = pa.list_(_number(pa.field("element", type_.value_type), ids))
    return pa.field(field.name, type_, field.nullable, metadata)


def encode(value: Any) -> str | None:
    """A statistics bound as text."""
    match value:
        case None | bytes():
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime() if value.tzinfo:
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ") + "+00"
        case datetime():
            return value.isoformat(sep=" ")
        case _:
            return str(value)


def decode(type_: pa.DataType, text: str | None) -> Any:
    """The value that `encode` wrote, given the column's type; None if there is no bound."""
    if text is None or pa.types.is_binary(type_):
        return None
    if pa.types.is_string(type_):
        return text
    if pa.types.is_boolean(type_):
        return text == "true"
    if pa.types.is_integer(type_):
        return int(text)
    if pa.types.is_floating(type_):
        return float(text)
    if pa.types.is_decimal(type_):
        return Decimal(text)
    if pa.types.is_date(type_):
        return date.fromisoformat(text)
    return datetime.fromisoformat(text)


def by_parent(columns: Sequence[FlatColumn]) -> dict[int | None, list[FlatColumn]]:
    parts: dict[int | None, list[FlatColumn]] = {}
    for column in columns:
        parts.setdefault(column.parent, []).append(column)
    return parts
