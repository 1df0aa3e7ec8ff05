"""Types, columns and time: what a row looks like, in terms every layer shares.

Types are Arrow's (`pyarrow.DataType`); this module says which of them Millstream stores and what
they are called in SQL. Sub-modules of other layers map them on to their own worlds: SQL text
(`sql.types`), the catalogue (`catalog.types`), Spark (`execute.types`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
ARRIVAL_TIME = "arrival_time"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW_ID_COLUMN = "_ducklake_internal_row_id"

SCALAR_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}


def instant(moment: int | datetime) -> int:
    """A time as streams count it: the number itself, or microseconds (in UTC unless it says otherwise)."""
    if isinstance(moment, int):
        return moment
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


class ObjectKind(StrEnum):
    """What a name in the catalogue stands for."""

    TABLE = "table"
    STREAM = "stream"
    STREAMING_TABLE = "streaming table"
    VIEW = "view"
    CONTINUOUS_VIEW = "continuous view"
    CONTINUOUS_QUERY = "continuous query"
    STREAMING_VIEW = "streaming view"
    INDEX = "index"
    RECEPTOR = "receptor"
    EMITTER = "emitter"
    STATE = "state"
    """What a standing query keeps: a table that users do not see."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of stream time: whole microseconds for TIMESTAMP, a plain number for integer time."""

    amount: int
    is_number: bool = False

    @classmethod
    def of(cls, span: timedelta) -> Duration:
        return cls(span // timedelta(microseconds=1))

    def sql(self) -> str:
        if self.is_number:
            return f"INTERVAL {self.amount}"
        seconds, micros = divmod(self.amount, 1_000_000)
        for unit, size in (("DAY", 86_400), ("HOUR", 3_600), ("MINUTE", 60)):
            if micros == 0 and seconds and seconds % size == 0:
                return f"INTERVAL '{seconds // size}' {unit}"
        fraction = f".{micros:06d}".rstrip("0") if micros else ""
        return f"INTERVAL '{seconds}{fraction}' SECOND"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type and what the catalogue knows of it.

    `max_length` is the n of VARCHAR(n) and CHAR(n); `padded` tells the two apart.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    max_length: int | None = None
    padded: bool = False
    comment: str | None = None

    @property
    def sql_type(self) -> str:
        if self.max_length is not None:
            return f"{'CHAR' if self.padded else 'VARCHAR'}({self.max_length})"
        return sql_type(self.type)

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=True)


@dataclass(frozen=True)
class Schema:
    """The columns of a table or stream, in order. Names are unique whatever their case."""

    columns: tuple[Column, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {c.name.lower(): c for c in self.columns}

    def get(self, name: str) -> Column | None:
        return self._by_name.get(name.lower())

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema([c.field() for c in self.columns])

    def select(self, names: Iterable[str]) -> Schema:
        return Schema(tuple(self._by_name[n.lower()] for n in names))


def sql_type(type_: pa.DataType) -> str:
    """The type's name in SQL; raises `ValueError` for a type that Millstream does not store."""
    if type_ in SCALAR_NAMES:
        return SCALAR_NAMES[type_]
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"ARRAY<{sql_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{sql_type(type_.key_type)}, {sql_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{quote_if_needed(f.name)}: {sql_type(f.type)}' for f in type_)}>"
    raise ValueError(f"no SQL type for {type_}")


def is_nested(type_: pa.DataType) -> bool:
    """Arrays, maps and structs; everything else is a scalar."""
    return bool(pa.types.is_nested(type_))


def is_time_type(type_: pa.DataType) -> bool:
    """Whether a column of this type can carry a stream's time."""
    return bool(type_ == TIMESTAMP or pa.types.is_integer(type_))


def quote_if_needed(name: str) -> str:
    """The identifier as SQL text: bare where it can be, in backquotes otherwise."""
    return name if name.isidentifier() and name.isascii() else quote(name)


def quote(name: str) -> str:
    """The identifier in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def normal_type(type_: pa.DataType) -> pa.DataType:
    """The stored type that an Arrow type from outside stands for; `ValueError` if there is none.

    Large and view strings become strings, other units and zones become UTC microseconds, unsigned
    integers the next signed size, dictionaries their values.
    """
    if type_ in SCALAR_NAMES:
        return type_
    if pa.types.is_dictionary(type_):
        return normal_type(type_.value_type)
    if pa.types.is_large_string(type_) or type_ == pa.string_view() or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or type_ == pa.binary_view() or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz else TIMESTAMP_NTZ
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_unsigned_integer(type_):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[type_.bit_width]
    if pa.types.is_float16(type_):
        return pa.float32()
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_map(type_):
        return pa.map_(normal_type(type_.key_type), normal_type(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(normal_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, normal_type(f.type)) for f in type_])
    raise ValueError(f"Millstream has no type for {type_}")
