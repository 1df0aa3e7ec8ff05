"""Every type that Millstream stores, with the values that are hard to get right."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from typing import Any


@dataclass(frozen=True)
class Case:
    """A SQL type, DuckDB's name for it, and values."""

    sql: str
    duck: str
    values: tuple[Any, ...]
    ordered: bool = True

    def __str__(self) -> str:
        return self.sql


def _integers(bits: int) -> tuple[int, ...]:
    return (-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1)


FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, inf, -inf, nan)
FLOAT_EXTREMES = (3.4028234663852886e38, 1.401298464324817e-45)
TEXTS = (
    "", " ", "a", "A", "aa", "Ω", "e\u0301", "é", "😀", "\U0010ffff", "\uffff", "a\0b", "\0", "\x01", "\n\t",
    "it's", '"', "\\", "NULL", "nan", "1e5", "x" * 3000,
)  # fmt: skip
MOMENTS = (
    datetime(1, 1, 1), datetime(1582, 10, 10, 12), datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime(1970, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4), datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
)  # fmt: skip


def _decimals(precision: int, scale: int) -> Case:
    name = f"DECIMAL({precision},{scale})"
    digits = ((9,) * precision, (1,), (0,))
    values = [Decimal((sign, d, -scale)) for d in digits for sign in (0, 1) if d != (0,) or not sign]
    return Case(name, name, tuple(values))


SCALARS = (
    Case("BOOLEAN", "BOOLEAN", (True, False)),
    Case("TINYINT", "TINYINT", _integers(8)),
    Case("SMALLINT", "SMALLINT", _integers(16)),
    Case("INT", "INTEGER", _integers(32)),
    Case("BIGINT", "BIGINT", _integers(64)),
    Case("FLOAT", "FLOAT", (*FLOATS, *FLOAT_EXTREMES, -FLOAT_EXTREMES[0])),
    Case("DOUBLE", "DOUBLE", (*FLOATS, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 0.1 + 0.2)),
    *(_decimals(*size) for size in ((1, 0), (4, 4), (9, 2), (18, 6), (19, 0), (38, 0), (38, 18), (38, 38))),
    Case("STRING", "VARCHAR", TEXTS),
    Case("VARCHAR(5)", "VARCHAR", ("", "a", "ab   ", "😀😀😀😀😀")),
    Case("CHAR(5)", "VARCHAR", ("     ", "a    ", "😀😀😀😀😀")),
    Case("BINARY", "BLOB", (b"", b"\0", b"a", b"\xff\xff", bytes(range(256)), b"\\x41")),
    Case("DATE", "DATE", tuple(m.date() for m in MOMENTS)),
    Case("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", tuple(m.replace(tzinfo=UTC) for m in MOMENTS)),
    Case("TIMESTAMP_NTZ", "TIMESTAMP", MOMENTS),
)
NESTED = (
    Case("ARRAY<INT>", "INTEGER[]", ([], [None], [1, None, -(2**31)], list(range(50))), ordered=False),
    Case("ARRAY<STRING>", "VARCHAR[]", ([], [""], ["a\0b", None, "😀"]), ordered=False),
    Case("ARRAY<BINARY>", "BLOB[]", ([], [b"\0\xff", None]), ordered=False),
    Case("ARRAY<DOUBLE>", "DOUBLE[]", ([nan, inf, -0.0], [None]), ordered=False),
    Case("ARRAY<ARRAY<DATE>>", "DATE[][]", ([], [[]], [None, [date(1, 1, 1), None]]), ordered=False),
    Case("MAP<STRING, INT>", "MAP(VARCHAR, INTEGER)", ([], [("a", 1), ("", None)]), ordered=False),
    Case(
        "MAP<INT, ARRAY<DECIMAL(10,2)>>",
        "MAP(INTEGER, DECIMAL(10,2)[])",
        ([], [(1, [Decimal("1.25"), None]), (2, None), (3, [])]),
        ordered=False,
    ),
    Case(
        "STRUCT<a: INT, b: STRING>",
        "STRUCT(a INTEGER, b VARCHAR)",
        ({"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": -1, "b": ""}),
        ordered=False,
    ),
    Case(
        "STRUCT<s: STRUCT<t: TIMESTAMP>, l: ARRAY<STRUCT<k: BOOLEAN>>, m: MAP<STRING, STRUCT<d: DOUBLE>>>",
        "STRUCT(s STRUCT(t TIMESTAMP WITH TIME ZONE), l STRUCT(k BOOLEAN)[], m MAP(VARCHAR, STRUCT(d DOUBLE)))",
        (
            {"s": {"t": MOMENTS[4].replace(tzinfo=UTC)}, "l": [{"k": True}, None], "m": [("x", {"d": 0.5})]},
            {"s": None, "l": None, "m": None},
            {"s": {"t": None}, "l": [], "m": []},
        ),
        ordered=False,
    ),
)
CASES = (*SCALARS, *NESTED)
