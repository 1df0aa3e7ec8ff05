"""Constants in SQL text → Python values, typed as Spark types them.

Takes literals, signed numbers, typed text (`DATE '…'`, `TIMESTAMP '…'`), hexadecimal bytes and bound
parameters; anything that needs computing raises `NotConstantError`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
KINDS = exp.DataType.Type
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
    """The number with the other sign, exactly: unary minus would round a Decimal to 28 digits."""
    if isinstance(of, Decimal):
        return of.copy_negate() if of else of
    if isinstance(of, int | float) and not isinstance(of, bool):
        return -of
    raise NotConstantError


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
