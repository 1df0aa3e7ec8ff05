"""Definitions, checked before they reach the catalogue: names, columns, a stream's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog.records import INLINE_SYSTEM_COLUMNS, StreamTime
from millstream.errors import Condition, DataError, StatementError, did_you_mean
from millstream.plan import bind
from millstream.schema import (
    ARRIVAL_TIME,
    EPOCH,
    ROW_ID_COLUMN,
    TIMESTAMP,
    Column,
    Duration,
    Schema,
    instant,
    is_nested,
    is_time_type,
)
from millstream.storage.index import is_indexable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.catalog.records import IndexInfo, StreamState, TableInfo
    from millstream.errors import Span
    from millstream.sql.statements import (
        AddColumns,
        CreateIndex,
        CreateStream,
        CreateStreamingTable,
        Name,
    )

RESERVED_COLUMNS = frozenset({ROW_ID_COLUMN, "_ducklake_internal_snapshot_id", "_metadata"})


def duplicate(name: Name, existing: TableInfo) -> StatementError:
    return StatementError(
        Condition.DUPLICATE_NAME,
        f"there is a {existing.kind.value} {existing.name!r} already",
        hint="Choose another name, DROP the old one first, or say IF NOT EXISTS.",
        span=name.span,
    )


def schema(columns: tuple[Column, ...]) -> Schema:
    """The columns as a schema; refuses none at all, doubles and names that the storage needs."""
    if not columns:
        raise StatementError(
            Condition.SYNTAX_ERROR,
            "a table needs at least one column",
            hint="Name its columns: CREATE TABLE t (id BIGINT, …).",
        )
    seen: set[str] = set()
    for column in columns:
        lower = column.name.lower()
        if lower in seen:
            raise StatementError(
                Condition.DUPLICATE_COLUMN,
                f"column {column.name!r} is declared twice",
                hint="Names of columns are the same whatever their case; rename one of them.",
            )
        if lower in RESERVED_COLUMNS or not column.name:
            raise StatementError(
                Condition.RESERVED_NAME,
                f"{column.name!r} cannot be the name of a column",
                hint="Choose another name.",
            )
        seen.add(lower)
        _check_parts(column.name, column.type)
    return Schema(columns)


def _check_parts(name: str, type_: pa.DataType) -> None:
    """Refuse structs with one name twice: Spark could not read them back."""
    parts = [type_.field(i) for i in range(type_.num_fields)]
    names = [p.name.lower() for p in parts]
    if len(set(names)) < len(names):
        raise StatementError(
            Condition.DUPLICATE_COLUMN,
            f"column {name!r} has a struct with one field name twice",
            hint="Names of fields are the same whatever their case; rename one of them.",
        )
    for part in parts:
        _check_parts(name, part.type)


def stream(statement: CreateStream | CreateStreamingTable) -> tuple[Schema, StreamTime]:
    """A stream's columns and its time: the declared column, or one stamped on arrival."""
    declared = schema(statement.columns)
    if statement.time_column is None:
        return _with_arrival(statement, declared)
    name = statement.time_column
    column = declared.get(name.text)
    if column is None:
        raise StatementError(
            Condition.UNKNOWN_COLUMN,
            f"no column {name.text!r} in the stream",
            hint=did_you_mean(name.text, declared.names) or "TIMESTAMP BY names one of the stream's columns.",
            span=name.span,
        )
    if not is_time_type(column.type):
        raise StatementError(
            Condition.INVALID_TIME_COLUMN,
            f"column {column.name!r} of type {column.sql_type} cannot be a stream's time",
            hint="Use a TIMESTAMP column, or an integer column.",
            span=name.span,
        )
    return declared, StreamTime(column.name, _delay(statement, column))


def _with_arrival(statement: CreateStream | CreateStreamingTable, declared: Schema) -> tuple[Schema, StreamTime]:
    if declared.get(ARRIVAL_TIME) is not None:
        raise StatementError(
            Condition.RESERVED_NAME,
            f"{ARRIVAL_TIME!r} is the time of arrival in a stream without TIMESTAMP BY",
            hint=f"Rename the column, or make it the stream's time: TIMESTAMP BY {ARRIVAL_TIME}.",
        )
    if statement.watermark is not None:
        raise StatementError(
            Condition.INVALID_TIME_COLUMN,
            "a watermark needs a time column",
            hint="Name it: TIMESTAMP BY col WATERMARK INTERVAL ….",
        )
    arrival = Column(ARRIVAL_TIME, TIMESTAMP)
    return Schema((*declared.columns, arrival)), StreamTime(ARRIVAL_TIME, Duration(0), is_arrival=True)


def _delay(statement: CreateStream | CreateStreamingTable, column: Column) -> Duration:
    is_number = column.type != TIMESTAMP
    delay = statement.watermark
    if delay is None:
        return Duration(0, is_number)
    if delay.is_number != is_number:
        raise StatementError(
            Condition.INVALID_INTERVAL,
            f"the watermark does not suit a time column of type {column.sql_type}",
            hint="Write WATERMARK INTERVAL 5 for integer time." if is_number
            else "Write WATERMARK INTERVAL '5' SECOND for a TIMESTAMP.",
        )  # fmt: skip
    return delay


def check_period(time: StreamTime, period: Duration | None, span: Span) -> None:
    """Refuse a RANGE that is not counted as the time is."""
    is_number = time.delay.is_number
    if period is not None and period.is_number != is_number:
        raise StatementError(
            Condition.INVALID_INTERVAL,
            "the RANGE does not suit the table's time",
            detail="Its time is a number." if is_number else "Its time is a timestamp.",
            hint="Write RANGE INTERVAL 300 for integer time." if is_number
            else "Write RANGE INTERVAL '30' DAY for a TIMESTAMP.",
            span=span,
        )  # fmt: skip


def index_column(statement: CreateIndex, table: TableInfo) -> int:
    """The id of the column to index, if it can be indexed."""
    if len(statement.columns) != 1:
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            "an index has one column",
            hint="Create an index for each column; a query uses the one that leaves the least to read.",
            span=statement.columns[1].span,
        )
    name = statement.columns[0]
    found = next(c for c in table.schema.columns if c.name == bind.column(table, name))
    if not is_indexable(found.type):
        raise StatementError(
            Condition.NOT_INDEXABLE,
            f"column {found.name!r} of type {found.sql_type} cannot be indexed",
            hint="Integers, DECIMAL, STRING, DATE and TIMESTAMP columns can.",
            span=name.span,
        )
    return table.column_ids[table.schema.columns.index(found)]


def duplicate_index(name: Name) -> StatementError:
    return StatementError(
        Condition.DUPLICATE_NAME,
        f"there is an index {name.text!r} already",
        hint="Choose another name, DROP the old one first, or say IF NOT EXISTS.",
        span=name.span,
    )


def unknown_index(name: Name, known: Iterable[IndexInfo]) -> StatementError:
    names = [i.name for i in known]
    return StatementError(
        Condition.UNKNOWN_INDEX,
        f"no index {name.text!r}",
        hint=did_you_mean(name.text, names) or "SHOW INDEXES lists the indices there are.",
        span=name.span,
    )


def new_columns(table: TableInfo, action: AddColumns) -> tuple[Column, ...]:
    """The columns to add: none that is there already, all with names that can be."""
    new = []
    for added, name in zip(action.columns, action.names, strict=True):
        if table.schema.get(added.name) is None:
            new.append(added)
        elif not action.if_not_exists:
            raise StatementError(
                Condition.DUPLICATE_COLUMN,
                f"{table.name!r} has a column {added.name!r} already",
                hint="Choose another name, or say ADD COLUMN IF NOT EXISTS.",
                span=name.span,
            )
    schema((*table.schema.columns, *new))
    return tuple(new)


def can_be_inlined(columns: Iterable[Column]) -> bool:
    """Whether small inserts with these columns can be rows of the catalogue."""
    return not any(is_nested(c.type) or c.name.lower() in INLINE_SYSTEM_COLUMNS for c in columns)


def time_value(stream: TableInfo, to: int | str | datetime) -> tuple[int, int]:
    """The time as the stream counts it, and the stream's delay."""
    assert stream.time is not None
    if stream.time.is_arrival:
        raise StatementError(
            Condition.INVALID_TIME_COLUMN,
            f"{stream.name!r} takes its time from the clock and cannot be advanced",
            hint="Declare a time column with TIMESTAMP BY to advance it by hand.",
        )
    delay = stream.time.delay
    if delay.is_number:
        if isinstance(to, bool) or not isinstance(to, int):
            raise _wrong_time(stream, to, "a whole number")
        if not -(2**63) <= to < 2**63:
            raise _wrong_time(stream, to, "a number of 64 bits")
        return to, delay.amount
    if isinstance(to, str):
        try:
            to = datetime.fromisoformat(to.strip())
        except ValueError as error:
            raise DataError(
                Condition.INVALID_VALUE,
                f"{to!r} is not a timestamp",
                hint="Write it as 'YYYY-MM-DD HH:MM:SS'.",
            ) from error
    if not isinstance(to, datetime):
        raise _wrong_time(stream, to, "a timestamp")
    return instant(to), delay.amount


def _wrong_time(stream: TableInfo, given: object, wanted: str) -> DataError:
    return DataError(
        Condition.TYPE_MISMATCH,
        f"{given!r} is not {wanted}, which is what the time of {stream.name!r} is",
        hint=f"Give {wanted}.",
    )


def time_text(stream: TableInfo, time: int | None) -> str | None:
    """A stream's time for people: a number, or a timestamp."""
    if time is None or stream.time is None:
        return None
    if stream.time.delay.is_number:
        return str(time)
    try:
        return (EPOCH + timedelta(microseconds=time)).replace(tzinfo=None).isoformat(sep=" ")
    except OverflowError:
        return "before all time" if time < 0 else "after all time"


def check_forward(stream: TableInfo, watermark: int | None, to: int) -> None:
    if watermark is not None and to < watermark:
        raise StatementError(
            Condition.TIME_GOES_BACKWARDS,
            f"{stream.name!r} is at {time_text(stream, watermark)} already",
            detail="Time only goes forward: rows up to there may have been answered for.",
            hint="Advance to a later time.",
        )


def advanced(state: StreamState, to: int) -> StreamState:
    return replace(state, advanced_to=to if state.advanced_to is None else max(to, state.advanced_to))
