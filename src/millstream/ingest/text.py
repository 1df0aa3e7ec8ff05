"""Text (of a CSV field or a JSON string) → a column's values; says which ones cannot be read.

A whole column is tried at once; only if that fails is each value looked at, so good files are fast and
bad ones are told exactly.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ

if TYPE_CHECKING:
    from millstream.schema import Column

Failures = dict[int, str]
EXACT = Context(prec=100)
TRUE, FALSE = ("true", "t", "yes", "1"), ("false", "f", "no", "0")


def read_column(values: pa.Array, column: Column) -> tuple[pa.Array, Failures]:
    """The values as the column's type; rows that fail are null there and named with the reason."""
    read, failures = _read(values, column)
    if not column.nullable:
        for i in pc.indices_nonzero(read.is_null()).to_pylist():
            failures.setdefault(i, f"column {column.name!r} must not be null")
    if column.max_length is not None:
        too_long = pc.greater(pc.utf8_length(read), column.max_length)
        for i in pc.indices_nonzero(too_long.fill_null(False)).to_pylist():
            failures.setdefault(i, f"too long for column {column.name!r} of type {column.sql_type}")
    return read, failures


def _read(values: pa.Array, column: Column) -> tuple[pa.Array, Failures]:
    if pa.types.is_string(column.type):
        return values.cast(pa.string()), {}
    try:
        return _at_once(pc.utf8_trim_whitespace(values), column.type), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _one_by_one(values.to_pylist(), column)


def _at_once(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if type_ == TIMESTAMP:
        return pc.assume_timezone(pc.cast(values, TIMESTAMP_NTZ), "UTC")
    if pa.types.is_boolean(type_) or pa.types.is_binary(type_) or pa.types.is_decimal(type_):
        raise pa.ArrowNotImplementedError
    return pc.cast(values, type_)


def _one_by_one(values: list[str | None], column: Column) -> tuple[pa.Array, Failures]:
    read: list[Any] = []
    failures: Failures = {}
    parse = parser(column.type)
    for i, text in enumerate(values):
        try:
            value = None if text is None else parse(text.strip())
            read.append(pa.scalar(value, column.type).as_py())
        except (ValueError, ArithmeticError, TypeError, pa.ArrowInvalid):
            failures[i] = f"{text!r} is not a value for column {column.name!r} of type {column.sql_type}"
            read.append(None)
    return pa.array(read, column.type), failures


def parser(type_: pa.DataType) -> Callable[[str], Any]:
    """How to read one text as a value of the type."""
    if pa.types.is_integer(type_):
        return int
    if pa.types.is_floating(type_):
        return float
    if pa.types.is_boolean(type_):
        return boolean
    if pa.types.is_decimal(type_):
        return lambda text: decimal(text, type_)
    if pa.types.is_date(type_):
        return date.fromisoformat
    if pa.types.is_timestamp(type_):
        return lambda text: timestamp(text, type_)
    if pa.types.is_binary(type_):
        return bytes.fromhex
    return str


def boolean(text: str) -> bool:
    lower = text.lower()
    if lower in TRUE or lower in FALSE:
        return lower in TRUE
    raise ValueError(text)


def decimal(text: str, type_: pa.DataType) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value.quantize(Decimal(1).scaleb(-type_.scale), ROUND_HALF_UP, EXACT)


def timestamp(text: str, type_: pa.DataType) -> datetime:
    value = datetime.fromisoformat(text)
    if type_ == TIMESTAMP:
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def from_json(value: Any, type_: pa.DataType) -> Any:
    """A parsed JSON value (numbers with a fraction as Decimal) as a Python value of the type."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        by_name = {k.lower(): v for k, v in value.items()}
        return {f.name: from_json(by_name.get(f.name.lower()), f.type) for f in type_}
    if pa.types.is_map(type_):
        key = parser(type_.key_type)
        return [(key(k), from_json(v, type_.item_type)) for k, v in value.items()]
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise ValueError("not an array")
        return [from_json(v, type_.value_type) for v in value]
    return _scalar_from_json(value, type_)


def _scalar_from_json(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_string(type_):
        if not isinstance(value, str):
            raise ValueError("not a string")
        return value
    if isinstance(value, bool) != pa.types.is_boolean(type_):
        raise ValueError("not of the column's type")
    if isinstance(value, str):
        if pa.types.is_binary(type_):
            return base64.b64decode(value, validate=True)
        if pa.types.is_floating(type_):
            return _special_float(value)
        if not pa.types.is_temporal(type_):
            raise ValueError("a string is not a number")
        return parser(type_)(value)
    if pa.types.is_integer(type_) and value != int(value):
        raise ValueError("not a whole number")
    if pa.types.is_temporal(type_) or pa.types.is_binary(type_) or isinstance(value, dict | list):
        raise ValueError("not of the column's type")
    return decimal(str(value), type_) if pa.types.is_decimal(type_) else _number(value, type_)


def _number(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return value
    return float(value) if pa.types.is_floating(type_) else int(value)


def _special_float(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        raise ValueError("a string is not a number")
    return value
