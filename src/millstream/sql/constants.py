"""Constants in SQL text → Python values, typed as Spark types them.

Takes literals, signed numbers, typed text (`DATE '…'`, `TIMESTAMP '…'`), hexadecimal bytes and bound
parameters; sums and differences of whole numbers, and of a timestamp and intervals of a fixed length, where
Spark computes the same. Anything else that needs computing, and what overflows in Spark, raises
`NotConstantError`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from sqlglot import exp

from millstream.sql.interval import MICROS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
KINDS = exp.DataType.Type
INT_LIMIT = 2**31
BIGINT_LIMIT = 2**63
LOWEST = (-INT_LIMIT, -BIGINT_LIMIT)
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
INSTANTS = (KINDS.TIMESTAMP, KINDS.TIMESTAMPTZ, KINDS.TIMESTAMPLTZ)


class NotConstantError(Exception):
    """The expression has to be computed."""


class UnboundError(NotConstantError):
    """The expression is a parameter that was given no value."""


class MalformedError(NotConstantError):
    """The text of a typed literal cannot be read as its type."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def value(expression: exp.Expr, parameters: Mapping[str, Any]) -> Any:
    """The value of a constant expression."""
    match expression:
        case exp.Paren():
            return value(expression.this, parameters)
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(expression.this)
        case exp.Literal():
            return expression.this if expression.is_string else number(expression.this)
        case exp.Neg():
            return negated(value(expression.this, parameters))
        case exp.Add() | exp.Sub():
            return _sum(expression, parameters)
        case exp.HexString():
            return _bytes(expression.this)
        case exp.Placeholder():
            return _parameter(expression, parameters)
        case exp.Cast() if isinstance(expression.this, exp.Literal) and expression.this.is_string:
            return _typed_text(expression.this.this, expression.to)
    raise NotConstantError


def number(text: str) -> int | float | Decimal:
    """A numeric literal: whole, exact, or floating if it has an exponent."""
    try:
        if text.isdigit():
            return int(text)
        return float(text) if "e" in text.lower() else Decimal(text)
    except (ArithmeticError, ValueError):
        raise NotConstantError from None


def negated(of: Any) -> int | float | Decimal:
    """The number with the other sign, exactly: unary minus would round a Decimal to 28 digits.

    The lowest INT and BIGINT have no such number in Spark.
    """
    if isinstance(of, Decimal):
        return of.copy_negate() if of else of
    if isinstance(of, int | float) and not isinstance(of, bool) and of not in LOWEST:
        return -of
    raise NotConstantError


def _sum(expression: exp.Add | exp.Sub, parameters: Mapping[str, Any]) -> Any:
    """`a + b - c …`, from the left as Spark computes it."""
    terms: list[tuple[exp.Expr, int]] = []
    first: exp.Expr = expression
    while isinstance(first, exp.Add | exp.Sub):
        terms.append((first.expression, 1 if isinstance(first, exp.Add) else -1))
        first = first.this
    try:
        total = _moment(first, parameters) if isinstance(terms[-1][0], exp.Interval) else value(first, parameters)
        for term, sign in reversed(terms):
            total = _plus(total, term, sign, parameters)
    except (NotConstantError, OverflowError, RecursionError):
        # What is unbound, malformed or too deep is for Spark to say: it knows the whole expression.
        raise NotConstantError from None
    return total


def _plus(total: Any, term: exp.Expr, sign: int, parameters: Mapping[str, Any]) -> int | datetime:
    if isinstance(term, exp.Interval):
        return _moved(total, term, sign)
    return _added(total, sign, value(term, parameters))


def _added(total: Any, sign: int, amount: Any) -> int:
    """Two INTs give an INT, anything with a BIGINT a BIGINT; Spark refuses what is too large for that."""
    if type(total) is not int or type(amount) is not int:
        raise NotConstantError
    limit = INT_LIMIT if _fits(total, INT_LIMIT) and _fits(amount, INT_LIMIT) else BIGINT_LIMIT
    result = total + sign * amount
    if not (_fits(total, limit) and _fits(amount, limit) and _fits(result, limit)):
        raise NotConstantError
    return result


def _fits(number: int, limit: int) -> bool:
    return -limit <= number < limit


def _moment(expression: exp.Expr, parameters: Mapping[str, Any]) -> datetime:
    moment = value(expression, parameters)
    # A parameter without a zone is in that of the process, which only Spark knows.
    if not isinstance(moment, datetime) or (moment.tzinfo is None and expression.find(exp.Placeholder)):
        raise NotConstantError
    return moment


def _moved(moment: Any, interval: exp.Interval, sign: int) -> datetime:
    """Always 24 hours for a day: the session's zone is UTC."""
    amount, unit = interval.this, interval.args.get("unit")
    size = MICROS.get(unit.name.upper().removesuffix("S")) if isinstance(unit, exp.Var) else None
    if size is None or not isinstance(amount, exp.Literal) or not WHOLE.fullmatch(amount.this):
        raise NotConstantError
    length = timedelta(microseconds=sign * size * int(amount.this))
    if not isinstance(moment, datetime):
        raise NotConstantError
    return (moment.astimezone(UTC) if moment.tzinfo else moment) + length


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise NotConstantError from None


def _parameter(expression: exp.Placeholder, parameters: Mapping[str, Any]) -> Any:
    if expression.name not in parameters:
        raise UnboundError(expression.name)
    given = parameters[expression.name]
    if isinstance(given, list | tuple | dict):
        raise NotConstantError
    return given


def _typed_text(text: str, to: exp.DataType) -> date | datetime:
    if to.this is KINDS.DATE:
        return _read(date.fromisoformat, text)
    if to.this in INSTANTS:
        moment = _read(datetime.fromisoformat, text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if to.this is KINDS.TIMESTAMPNTZ:
        return _read(datetime.fromisoformat, text)
    raise NotConstantError


def _read(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text.strip())
    except ValueError:
        raise MalformedError(text) from None
