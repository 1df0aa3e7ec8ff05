"""INSERT … VALUES without Spark: literals → Python values, by Spark's store assignment.

Takes only what it can convert exactly as Spark would, plus one kindness: text for a date or a
timestamp. `rows` gives None where an expression needs Spark (a function, a cast, arithmetic).
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from millstream.errors import Condition, DataError, Span, StatementError
from millstream.ingest.convert import wrong_arity
from millstream.schema import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.ingest.convert import Target
    from millstream.schema import Column

EXACT = Context(prec=100)
BOUNDS = {
    t: (-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1)
    for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}


class _NeedsSpark(Exception):  # noqa: N818
    """The expression is more than a literal."""


def rows(
    given: Sequence[Sequence[exp.Expression]], target: Target, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]] | None:
    """The rows as Python values of the columns' types, or None if Spark has to compute them."""
    found = []
    try:
        for number, row in enumerate(given, 1):
            if len(row) != len(target.filled):
                raise wrong_arity(target, len(row), number)
            pairs = zip(row, target.filled, strict=True)
            found.append(tuple(_converted(value, column, parameters) for value, column in pairs))
    except _NeedsSpark:
        return None
    return found


def _converted(expression: exp.Expression, column: Column, parameters: Mapping[str, Any]) -> Any:
    if isinstance(expression, exp.Null):
        return None
    try:
        return _assign(_value(expression, column, parameters), column)
    except (DataError, StatementError) as error:
        error.span = error.span or span_of(expression)
        raise


def span_of(expression: exp.Expression) -> Span | None:
    """Where an expression stands in the text, from the positions of its tokens."""
    places = [n.meta for n in expression.walk() if "start" in n.meta]
    if not places:
        return None
    start = min(p["start"] for p in places)
    return Span(start - isinstance(expression, exp.Neg), max(p["end"] for p in places) + 1)


def _value(expression: exp.Expression, column: Column, parameters: Mapping[str, Any]) -> Any:
    if isinstance(expression, exp.Paren):
        return _value(expression.this, column, parameters)
    if isinstance(expression, exp.Boolean):
        return bool(expression.this)
    if isinstance(expression, exp.Literal):
        return expression.this if expression.is_string else number(expression.this)
    if (
        isinstance(expression, exp.Neg)
        and isinstance(expression.this, exp.Literal)
        and not expression.this.is_string
    ):
        return negated(number(expression.this.this))
    if isinstance(expression, exp.Placeholder):
        return _parameter(expression, parameters)
    if isinstance(expression, exp.HexString):
        return bytes.fromhex(expression.this)
    if isinstance(expression, exp.Cast) and isinstance(expression.this, exp.Literal) and expression.this.is_string:
        return _typed_text(expression, column)
    raise _NeedsSpark


def _parameter(expression: exp.Expression, parameters: Mapping[str, Any]) -> Any:
    if expression.name not in parameters:
        raise StatementError(
            Condition.UNBOUND_PARAMETER,
            f"no value was given for the parameter :{expression.name}",
            hint=f"Pass it by name: db.sql(…, {expression.name}=…).",
        )
    value = parameters[expression.name]
    if isinstance(value, list | tuple | dict):
        raise _NeedsSpark
    return value


def number(text: str) -> int | float | Decimal:
    """A numeric literal as Spark types it: whole, exact, or floating if it has an exponent."""
    try:
        if text.isdigit():
            return int(text)
        return float(text) if "e" in text.lower() else Decimal(text)
    except (ArithmeticError, ValueError):
        raise _NeedsSpark from None


def negated(value: int | float | Decimal) -> int | float | Decimal:
    """The value with the other sign, exactly: unary minus would round a Decimal to 28 digits."""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _typed_text(expression: exp.Cast, column: Column) -> Any:
    kinds = exp.DataType.Type
    text = expression.this.this
    to = expression.to
    if to.is_type(kinds.DATE):
        return _read(date.fromisoformat, text, column)
    if to.is_type(kinds.TIMESTAMP, kinds.TIMESTAMPTZ, kinds.TIMESTAMPLTZ):
        value = _read(datetime.fromisoformat, text, column)
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if to.is_type(kinds.TIMESTAMPNTZ):
        return _read(datetime.fromisoformat, text, column)
    raise _NeedsSpark


def _assign(value: Any, column: Column) -> Any:
    type_ = column.type
    if value is None:
        return None
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else _refuse(value, column)
    if isinstance(value, bool):
        return ("true" if value else "false") if pa.types.is_string(type_) else _refuse(value, column)
    if pa.types.is_integer(type_):
        return _integer(value, column)
    if pa.types.is_floating(type_):
        return float(value) if isinstance(value, int | float | Decimal) else _refuse(value, column)
    if pa.types.is_decimal(type_):
        return _decimal(value, column)
    if pa.types.is_string(type_):
        return _text(value)
    if pa.types.is_binary(type_):
        return value if isinstance(value, bytes) else _refuse(value, column)
    if pa.types.is_date(type_):
        return _date(value, column)
    if pa.types.is_timestamp(type_):
        return _timestamp(value, column)
    raise _NeedsSpark


def _integer(value: Any, column: Column) -> int:
    if not isinstance(value, int | float | Decimal):
        return int(_refuse(value, column))
    try:
        whole = int(value)
    except (OverflowError, ValueError):
        raise _too_large(value, column) from None
    low, high = BOUNDS[column.type]
    if not low <= whole <= high:
        raise _too_large(value, column)
    return whole


def _decimal(value: Any, column: Column) -> Decimal:
    if isinstance(value, float):
        raise _NeedsSpark
    if not isinstance(value, int | Decimal):
        return Decimal(_refuse(value, column))
    try:
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-column.type.scale), ROUND_HALF_UP, EXACT)
    except ArithmeticError:
        raise _too_large(value, column) from None
    if len(rounded.as_tuple().digits) > column.type.precision:
        raise _too_large(value, column)
    return rounded


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | Decimal):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    raise _NeedsSpark


def _date(value: Any, column: Column) -> date:
    if isinstance(value, str):
        return _read(date.fromisoformat, value, column)  # type: ignore[no-any-return]
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else _refuse(value, column)  # type: ignore[return-value]


def _timestamp(value: Any, column: Column) -> datetime:
    if isinstance(value, str):
        value = _read(datetime.fromisoformat, value, column)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001
    if not isinstance(value, datetime):
        return _refuse(value, column)  # type: ignore[return-value]
    if column.type == TIMESTAMP:
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def _read(parse: Any, text: str, column: Column) -> Any:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise DataError(
            Condition.INVALID_VALUE,
            f"{text!r} cannot be read as column {column.name!r} of type {column.sql_type}",
            hint="Write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'.",
        ) from error


def _refuse(value: Any, column: Column) -> str:
    raise DataError(
        Condition.TYPE_MISMATCH,
        f"a value of type {type(value).__name__} does not go into column {column.name!r}"
        f" of type {column.sql_type}",
        hint=f"Give a {column.sql_type}, or convert it with CAST(… AS {column.sql_type}).",
    )


def _too_large(value: Any, column: Column) -> DataError:
    return DataError(
        Condition.NUMERIC_OVERFLOW,
        f"{value} does not fit column {column.name!r} of type {column.sql_type}",
        hint="Use a wider type, or correct the value.",
    )
