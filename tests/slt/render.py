"""How a value looks in the expected rows of an `.slt` file.

Cells of a row are separated by ` | `. NULL is `NULL`, the empty string `(empty)`, booleans `true` and
`false`, floats Python's `repr` (`nan`, `inf`, `-0.0`), decimals all their digits, timestamps
`2024-01-01 00:00:00` (in UTC, with `.123456` where there are microseconds), dates `2024-01-01`, binary
`X'AB'`, arrays `[1, 2]`, maps and structs `{key: value}`. A string that could be mistaken for something
else (`NULL`, `(empty)`, outer blanks, control characters, ` | ` inside) is written as a JSON string.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

CELL_SEPARATOR = " | "


def render_row(row: Iterable[Any]) -> str:
    """One line of expected rows."""
    return CELL_SEPARATOR.join(render_value(value) for value in row)


def render_delivery(instant: Any, skipped: int, rows: pa.Table) -> list[str]:
    """The line of a delivery's instant, and those of its rows."""
    head = f"@{render_value(instant)}" + (f" skipped {skipped}" if skipped else "")
    columns = [column.to_pylist() for column in rows.columns]
    return [head, *(render_row(row) for row in zip(*columns, strict=True))]


def render_value(value: Any) -> str:
    """One cell."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"X'{bytes(value).hex().upper()}'"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return value.isoformat()
    return _nested(value)


def _text(value: str) -> str:
    if value == "":
        return "(empty)"
    misread = value in ("NULL", "(empty)") or value != value.strip() or CELL_SEPARATOR in value
    if misread or not value.isprintable():
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return value


def _timestamp(value: datetime) -> str:
    in_utc = value.astimezone(UTC) if value.tzinfo else value
    return in_utc.replace(tzinfo=None).isoformat(sep=" ")


def _nested(value: Any) -> str:
    if hasattr(value, "asDict"):
        return _pairs(value.asDict().items())
    if isinstance(value, dict):
        return _pairs(value.items())
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return _pairs(value)
        return f"[{', '.join(render_value(item) for item in value)}]"
    return repr(value)


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> str:
    return "{" + ", ".join(f"{render_value(key)}: {render_value(value)}" for key, value in pairs) + "}"
