"""INTERVAL literals to lengths of stream time.

Reads Spark's day-time intervals ('5' MINUTE, 5 MINUTES, '1:30' MINUTE TO SECOND, '2 hours 5 minutes') and
plain numbers for integer time. A length is more than zero; months and years have no fixed length. Both
are refused with INVALID_INTERVAL.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn

from millstream.errors import Condition, did_you_mean
from millstream.schema import Duration

if TYPE_CHECKING:
    from millstream.errors import Span
    from millstream.sql.cursor import Cursor

MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
NO_FIXED_LENGTH = ("MONTH", "QUARTER", "YEAR")
FIELDS = ("DAY", "HOUR", "MINUTE", "SECOND")
WHOLE = re.compile(r"\s*([+-]?)\s*(\d+)(\.\d*)?\s*")
UNITS_TEXT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
LONGEST = 2**63 - 1
FORMS = "Write INTERVAL '5' MINUTE, or INTERVAL 300 for integer time."


def read_interval(cursor: Cursor) -> Duration:
    """`INTERVAL …` from the word INTERVAL on."""
    first = cursor.index
    cursor.expect("INTERVAL")
    negative = cursor.accept("-")
    if cursor.is_string():
        duration = _quoted(cursor, first)
    elif cursor.is_number():
        duration = _unquoted(cursor, first)
    else:
        cursor.fail_expecting("a length")
    amount = -duration.amount if negative else duration.amount
    _check(cursor, amount, cursor.since(first))
    return Duration(amount, duration.is_number)


def _quoted(cursor: Cursor, first: int) -> Duration:
    text = cursor.string()
    if not _at_unit(cursor) and not (WHOLE.fullmatch(text) and cursor.word().isalpha()):
        return Duration(_units_in_text(cursor, text, cursor.since(first)))
    unit = _unit(cursor)
    if cursor.accept("TO"):
        return Duration(_between(cursor, text, unit, _unit(cursor), first))
    amount = _amount(cursor, text, unit, first)
    while cursor.is_string() and _at_unit(cursor, 1):
        text = cursor.string()
        amount += _amount(cursor, text, _unit(cursor), first)
    return Duration(amount)


def _unquoted(cursor: Cursor, first: int) -> Duration:
    if not _at_unit(cursor, 1):
        return Duration(cursor.integer(), is_number=True)
    amount = 0
    while cursor.is_number() and _at_unit(cursor, 1):
        text = cursor.source()
        cursor.index += 1
        amount += _amount(cursor, text, _unit(cursor), first)
    return Duration(amount)


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("S") else word


def _at_unit(cursor: Cursor, ahead: int = 0) -> bool:
    unit = _singular(cursor.word(ahead))
    return unit in MICROS or unit in NO_FIXED_LENGTH


def _unit(cursor: Cursor) -> str:
    unit = _singular(cursor.word())
    if unit in NO_FIXED_LENGTH:
        _refuse_calendar(cursor, unit, cursor.span())
    if unit not in MICROS:
        hint = did_you_mean(unit, MICROS) or FORMS
        cursor.fail(f"{cursor.found()} is no unit of time", hint=hint, condition=Condition.INVALID_INTERVAL)
    cursor.index += 1
    return unit


def _refuse_calendar(cursor: Cursor, unit: str, span: Span) -> NoReturn:
    cursor.fail(
        f"a {unit.lower()} has no fixed length",
        hint="Give the length in DAY, HOUR, MINUTE or SECOND.",
        at=span,
        condition=Condition.INVALID_INTERVAL,
    )


def _amount(cursor: Cursor, text: str, unit: str, first: int) -> int:
    match = WHOLE.fullmatch(text)
    if match is None or (match.group(3) and unit != "SECOND"):
        _refuse(cursor, f"{text[:40]!r} is no number of {unit.lower()}s", cursor.since(first))
    amount = int(Decimal(f"{match.group(2)[:25]}{match.group(3) or ''}") * MICROS[unit])
    return -amount if match.group(1) == "-" else amount


def _units_in_text(cursor: Cursor, text: str, span: Span) -> int:
    amount, position, body = 0, 0, text.strip()
    while position < len(body):
        match = UNITS_TEXT.match(body, position)
        if match is None:
            _refuse(cursor, f"the interval {text[:40]!r} has no unit", span)
        unit = _singular(match.group(2).upper())
        if unit in NO_FIXED_LENGTH:
            _refuse_calendar(cursor, unit, span)
        if unit not in MICROS:
            _refuse(cursor, f"{match.group(2)[:40]!r} is no unit of time", span)
        amount += int(Decimal(match.group(1)[:40]) * MICROS[unit])
        position = match.end()
    return amount


def _between(cursor: Cursor, text: str, high: str, low: str, first: int) -> int:
    """`'1 02:03:04.5' DAY TO SECOND` and its shorter forms."""
    if high not in FIELDS or low not in FIELDS or FIELDS.index(high) >= FIELDS.index(low):
        _refuse(cursor, f"an interval cannot run from {high} to {low}", cursor.since(first))
    fields = FIELDS[FIELDS.index(high) : FIELDS.index(low) + 1]
    numbers = re.split(r"[ :]", text.strip().lstrip("+-"))
    negative = text.strip().startswith("-")
    if len(numbers) != len(fields):
        _refuse(cursor, f"{text[:40]!r} does not have the fields {' '.join(fields)}", cursor.since(first))
    amounts = [_amount(cursor, n, f, first) for n, f in zip(numbers, fields, strict=True)]
    if any(a >= MICROS[larger] for a, larger in zip(amounts[1:], fields, strict=False)):
        _refuse(cursor, f"a field of {text[:40]!r} is too large", cursor.since(first))
    return -sum(amounts) if negative else sum(amounts)


def _check(cursor: Cursor, amount: int, span: Span) -> None:
    if amount <= 0:
        _refuse(cursor, "an interval must be longer than zero", span)
    if amount > LONGEST:
        _refuse(cursor, "the interval is too long", span)


def _refuse(cursor: Cursor, message: str, span: Span) -> NoReturn:
    cursor.fail(message, hint=FORMS, at=span, condition=Condition.INVALID_INTERVAL)
