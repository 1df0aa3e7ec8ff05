"""Whatever a caller hands in → an Arrow table with exactly the target's columns and types.

Names decide where the data has them, order where it has none. Conversions never lose anything but
sub-microsecond digits: what does not fit is an error that names the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Condition, DataError, StatementError, did_you_mean
from millstream.ingest import text
from millstream.schema import Column, Schema

OVERFLOW = re.compile(
    r"not in range|out of bounds|overflow|too large|does not fit|precision|rescal", re.IGNORECASE
)
PARSE = re.compile(r"[Pp]arse|[Ii]nvalid|conversion|[Ff]ailed to", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """Where rows go: a name for messages, the columns to fill, and all columns in order."""

    name: str
    schema: Schema
    filled: tuple[Column, ...]

    def widened(self, data: pa.Table) -> pa.Table:
        """The data with null columns for what it does not fill, in the table's order."""
        given = {name.lower(): data.column(i) for i, name in enumerate(data.column_names)}
        columns = [
            given.get(c.name.lower(), pa.chunked_array([pa.nulls(data.num_rows, c.type)]))
            for c in self.schema.columns
        ]
        return pa.table(columns, schema=self.schema.arrow)


def to_arrow(data: Any, target: Target) -> pa.Table:
    """Rows in any form that `Database.insert` takes (but a Spark frame) as the target's Arrow table."""
    table = _as_table(data, target)
    return target.widened(fit(table, target))


def _as_table(data: Any, target: Target) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if type(data).__module__.startswith("pandas."):
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise _no_rows(type(data).__name__)
    rows = list(data)
    if any(isinstance(row, Mapping) != isinstance(rows[0], Mapping) for row in rows):
        raise _no_rows("a mixture of dicts and other rows")
    return _from_rows(rows, target)


def _no_rows(given: str) -> StatementError:
    return StatementError(
        Condition.INVALID_ARGUMENT,
        f"rows cannot be made of {given}",
        hint="Give Arrow, pandas or Spark data, or a list of tuples or of dicts.",
    )


def _from_rows(rows: list[Any], target: Target) -> pa.Table:
    if rows and isinstance(rows[0], Mapping):
        names = _names_of(rows, target)
        columns = [[row.get(name) for row in rows] for name in names]
        return _from_columns(names, columns, target)
    width = len(target.filled)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != width:
            raise wrong_arity(target, len(row) if isinstance(row, Sequence | Mapping) else 1, number)
    columns = [list(c) for c in zip(*rows, strict=True)] or [[] for _ in range(width)]
    return _from_columns([c.name for c in target.filled], columns, target)


def _names_of(rows: list[Mapping[str, Any]], target: Target) -> list[str]:
    names = list(dict.fromkeys(str(k) for row in rows for k in row))
    _check_names(names, target)
    return names


def _from_columns(names: list[str], columns: list[list[Any]], target: Target) -> pa.Table:
    by_name = {c.name.lower(): c for c in target.schema.columns}
    arrays = [
        column_from_values(values, by_name[name.lower()]) for name, values in zip(names, columns, strict=True)
    ]
    return pa.table(arrays, names=names)


def column_from_values(values: list[Any], column: Column) -> pa.Array:
    """Python values as an Arrow array of the column's type."""
    refused = _refused_classes(column.type)
    if refused and any(isinstance(v, refused) for v in values):
        raise mismatch(column, [v for v in values if isinstance(v, refused)], None)
    if pa.types.is_date(column.type):
        values = [_day(v) for v in values]
    try:
        return pa.array(values, column.type)
    except OverflowError as error:
        raise overflow(column, error) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, pa.ArrowNotImplementedError) as error:
        return _by_inference(values, column, error)


def _refused_classes(type_: pa.DataType) -> tuple[type, ...]:
    """Classes that Arrow would take for a column of the type, but SQL would not."""
    if pa.types.is_temporal(type_):
        return (int, float, bytes, timedelta)
    if pa.types.is_string(type_):
        return (bytes, timedelta)
    return (str,) if pa.types.is_binary(type_) else ()


def _day(value: Any) -> Any:
    """The day of a moment, in UTC."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).date()
    return value


def _by_inference(values: list[Any], column: Column, first: Exception) -> pa.Array:
    """Values that are not of the column's type as they stand: infer their type, then cast."""
    try:
        inferred = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
        raise mismatch(column, values, first) from error
    if pa.types.is_string(inferred.type) and not _takes_text(column.type):
        raise mismatch(column, values, first)
    return cast(inferred, column)


def _takes_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type_) or pa.types.is_string(type_))


def fit(table: pa.Table, target: Target) -> pa.Table:
    """The columns that the data has, cast to the target's types."""
    _check_names(table.column_names, target)
    by_name = {c.name.lower(): c for c in target.schema.columns}
    arrays = [cast(table.column(i), by_name[n.lower()]) for i, n in enumerate(table.column_names)]
    return pa.table(arrays, names=table.column_names)


def _check_names(names: Sequence[str], target: Target) -> None:
    known = {c.name.lower() for c in target.filled}
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise StatementError(
                Condition.DUPLICATE_COLUMN, f"column {name!r} is given twice", hint="Rename or drop one of them."
            )
        seen.add(name.lower())
        if name.lower() not in known:
            raise StatementError(
                Condition.UNKNOWN_COLUMN,
                f"no column {name!r} in {target.name!r}",
                hint=did_you_mean(name, [c.name for c in target.filled])
                or f"It has {', '.join(c.name for c in target.filled[:12])}.",
            )


def cast(values: pa.Array | pa.ChunkedArray, column: Column) -> pa.Array | pa.ChunkedArray:
    """The values as the column's type; an error names the column and the first value that fails."""
    if values.type == column.type:
        return values
    if not castable(values.type, column.type):
        raise mismatch(column, _sample(values), None)
    try:
        if _is_text(values.type) and pa.types.is_temporal(column.type):
            return _times_from_text(values, column)
        if pa.types.is_floating(values.type) and pa.types.is_integer(column.type):
            values = pc.trunc(values)
        if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(column.type):
            return pc.cast(values, options=pc.CastOptions(column.type, allow_time_truncate=True))
        if _is_number(values.type) and pa.types.is_floating(column.type):
            return pc.cast(values, column.type, safe=False)
        if pa.types.is_integer(values.type) and pa.types.is_decimal(column.type):
            values = pc.cast(values, pa.decimal128(38, 0))
            return _rescaled(values, column)
        if pa.types.is_decimal(values.type) and pa.types.is_integer(column.type):
            values = pc.trunc(values)
        if _has_more_digits(values.type, column.type):
            values = pc.round(values, column.type.scale, round_mode="half_towards_infinity")
        return pc.cast(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if OVERFLOW.search(str(error)) and not pa.types.is_string(values.type):
            raise overflow(column, error) from error
        raise invalid(column, error) from error


def _times_from_text(values: pa.Array | pa.ChunkedArray, column: Column) -> pa.Array:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    read, failures = text.read_column(whole.cast(pa.string()), column)
    for reason in failures.values():
        raise invalid(column, ValueError(reason))
    return read


def _rescaled(values: pa.Array | pa.ChunkedArray, column: Column) -> pa.Array | pa.ChunkedArray:
    """Whole decimals in the column's type: through Python, since Arrow judges by type and not by value."""
    try:
        return pa.array(values.to_pylist(), column.type)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise overflow(column, error) from error


def _has_more_digits(source: pa.DataType, target: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(source) and pa.types.is_decimal(target) and source.scale > target.scale)


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether data of one type may go into a column of another: the families of store assignment."""
    if pa.types.is_null(source) or source == target:
        return True
    if pa.types.is_dictionary(source):
        return castable(source.value_type, target)
    if _is_number(source) and _is_number(target):
        return True
    if pa.types.is_string(target):
        return not pa.types.is_nested(source) and not _is_bytes(source)
    if _is_text(source):
        return bool(pa.types.is_temporal(target))
    if pa.types.is_temporal(source) and pa.types.is_temporal(target):
        return not (pa.types.is_time(source) or pa.types.is_duration(source))
    if _is_bytes(source) and pa.types.is_binary(target):
        return True
    return _nested_castable(source, target)


def _nested_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Part by part; the fields of a struct are found by name."""
    if pa.types.is_map(source) and pa.types.is_map(target):
        return castable(source.key_type, target.key_type) and castable(source.item_type, target.item_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        given = {f.name: f.type for f in source}
        return given.keys() == {f.name for f in target} and all(castable(given[f.name], f.type) for f in target)
    is_list = pa.types.is_list(source) or pa.types.is_large_list(source) or pa.types.is_fixed_size_list(source)
    return bool(is_list and pa.types.is_list(target) and castable(source.value_type, target.value_type))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or type_ == pa.string_view())


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or type_ == pa.binary_view()
    )


def _sample(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    return list(values.drop_null().slice(0, 1).to_pylist())


def _kind(values: list[Any]) -> str:
    present = [v for v in values if v is not None]
    return type(present[0]).__name__ if present else "null"


def wrong_arity(target: Target, given: int, row: int) -> StatementError:
    return StatementError(
        Condition.WRONG_ARITY,
        f"{target.name!r} takes {len(target.filled)} values and row {row} has {given}",
        detail=f"Expected: {', '.join(c.name for c in target.filled)}.",
        hint="Give one value for each column, or name the columns you give.",
    )


def mismatch(column: Column, values: list[Any], error: Exception | None) -> DataError:
    return DataError(
        Condition.TYPE_MISMATCH,
        f"a value of type {_kind(values)} does not go into column {column.name!r} of type {column.sql_type}",
        detail=str(error).splitlines()[0] if error else None,
        hint=f"Convert it to {column.sql_type} first.",
    )


def overflow(column: Column, error: Exception) -> DataError:
    return DataError(
        Condition.NUMERIC_OVERFLOW,
        f"a value does not fit column {column.name!r} of type {column.sql_type}",
        detail=str(error).splitlines()[0],
        hint="Use a wider type, or correct the value.",
    )


def invalid(column: Column, error: Exception) -> DataError:
    return DataError(
        Condition.INVALID_VALUE,
        f"a value cannot be read as column {column.name!r} of type {column.sql_type}",
        detail=str(error).splitlines()[0],
        hint=f"Write it in the form of {column.sql_type}.",
    )
