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
from millstream.sql import constants
from millstream.sql.constants import MalformedError, NotConstantError, UnboundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.ingest.convert import Target
    from millstream.schema import Column

EXACT = Context(prec=100)
BOUNDS = {
    t: (-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1)
    for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}


def rows(
    given: Sequence[Sequence[exp.Expression]], target: Target, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]] | None:
    """The rows as Python values of the columns' types, or None if Spark has to compute them."""
    found = []
    try:
        for number, row in enumerate(given, 1):
            if len(row) != len(target.filled):
                error = wrong_arity(target, len(row), number)
                error.span = span_of(*row)
                raise error
            pairs = zip(row, target.filled, strict=True)
            found.append(tuple(_converted(value, column, parameters) for value, column in pairs))
    except NotConstantError:
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


def span_of(*expressions: exp.Expression) -> Span | None:
    """Where expressions stand in the text, from the positions of their tokens."""
    places = [n.meta for e in expressions for n in e.walk() if "start" in n.meta]
    if not places:
        return None
    start = min(p["start"] for p in places)
    return Span(start - isinstance(expressions[0], exp.Neg), max(p["end"] for p in places) + 1)


def _value(expression: exp.Expression, column: Column, parameters: Mapping[str, Any]) -> Any:
    try:
        return constants.value(expression, parameters)
    except UnboundError:
        raise StatementError(
            Condition.UNBOUND_PARAMETER,
            f"no value was given for the parameter :{expression.name}",
            hint=f"Pass it by name: db.sql(…, {expression.name}=…).",
        ) from None
    except MalformedError as error:
        raise _unreadable(error.text, column) from None


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
    raise NotConstantError


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
        raise NotConstantError
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
    raise NotConstantError


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
        raise _unreadable(text, column) from error


def _unreadable(text: str, column: Column) -> DataError:
    return DataError(
        Condition.INVALID_VALUE,
        f"{text!r} cannot be read as column {column.name!r} of type {column.sql_type}",
        hint="Write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'.",
    )


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
