"""The values given for `:name` in a statement, checked before they go anywhere."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any

from millstream.errors import Condition, StatementError

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = (bool, int, float, Decimal, str, bytes, date, NoneType)
MOST_DIGITS = 38


def checked_parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters as Spark takes them, if all are values that SQL knows."""
    return {name: _checked_parameter(name, value) for name, value in given.items()}


def _checked_parameter(name: str, value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = Decimal(value)
    if isinstance(value, PLAIN) and _is_representable(value):
        return value
    raise StatementError(
        Condition.INVALID_ARGUMENT,
        f"the parameter :{name} has a value that SQL does not know",
        detail=f"It is a {type(value).__name__}.",
        hint="Give a number of up to 38 digits, text, bytes, a date, a datetime, a bool or None.",
    )


def _is_representable(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite() and len(value.as_tuple().digits) <= MOST_DIGITS
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
