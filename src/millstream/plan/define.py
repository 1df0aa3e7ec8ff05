"""Definitions, checked before they reach the catalogue: names, columns, a stream's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog.records import StreamTime
from millstream.errors import Condition, DataError, StatementError, did_you_mean
from millstream.schema import ARRIVAL_TIME, ROW_ID_COLUMN, TIMESTAMP, Column, Duration, Schema, is_time_type
from millstream.sql.names import check_name

if TYPE_CHECKING:
    from millstream.catalog.records import StreamState, TableInfo
    from millstream.sql.statements import CreateStream, Name

__all__ = ["advanced", "check_forward", "check_name", "duplicate", "schema", "stream", "time_value"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


def stream(statement: CreateStream) -> tuple[Schema, StreamTime]:
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


def _with_arrival(statement: CreateStream, declared: Schema) -> tuple[Schema, StreamTime]:
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


def _delay(statement: CreateStream, column: Column) -> Duration:
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


def instant(moment: datetime) -> int:
    """A moment as a stream counts it: microseconds, in UTC unless it says otherwise."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


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
    return (EPOCH + timedelta(microseconds=time)).replace(tzinfo=None).isoformat(sep=" ")


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
