"""A streaming table in plain Python: a list of rows, a watermark, a period; and predicates on its rows.

A predicate knows its meaning on a row and its text for Millstream and for DuckDB. Both the model and the
predicates follow the definitions and nothing of the implementation: content is what is stored and not
older than the period, and a pass of retention takes away whole tenths of the period, aligned.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

Row = tuple[Any, ...]
Strategy = st.SearchStrategy[Any]

NAME, TIME = "h", "t"
LONG_TEXT = "x" * 300
DOMAINS: dict[str, list[Any]] = {
    "INT": [0, 1, 2, 3, 5, 8, -1],
    "STRING": ["", "a", "ab", "b", "é", "zz", "it's", LONG_TEXT],
    "DECIMAL(9,2)": [Decimal(i).scaleb(-2) for i in (-150, 0, 1, 25, 100, 1000)],
    "DATE": [date(2024, 1, 1), date(2024, 2, 29), date(1970, 1, 1), date(2031, 12, 31)],
    "ARRAY<INT>": [[], [1], [1, None]],
}
"""Values of the columns but for the time, few of each so that predicates hit; the time is any number."""
COLUMNS = {"n": "BIGINT", TIME: "BIGINT", "k": "INT", "s": "STRING", "d": "DECIMAL(9,2)", "y": "DATE"}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SPANS = ("BETWEEN", "VALID BETWEEN", "OVERLAPS", "OVERLAPS PERIOD")


def literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"DATE '{value}'" if isinstance(value, date) else str(value)


@dataclass(frozen=True)
class Conjunct:
    """A comparison of one column: an operator, a span, IN or IS [NOT] NULL."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        if self.operator in ("IS NULL", "IS NOT NULL"):
            return (value is None) == (self.operator == "IS NULL")
        if value is None:
            return False
        if self.operator == "IN":
            return value in self.values
        if self.operator in SPANS:
            return bool(self.values[0] <= value <= self.values[1])
        return OPERATORS[self.operator.removeprefix("VALID ")](value, self.values[0])

    def text(self) -> str:
        """The conjunct in Millstream's SQL."""
        given = [literal(v) for v in self.values]
        column = f"VALID({NAME})" if self.operator in SPANS[1:] or "VALID" in self.operator else self.column
        if self.operator.startswith("OVERLAPS"):
            return f"{column} {self.operator} ({given[0]}, {given[1]})"
        return _plain(column, self.operator.removeprefix("VALID "), given)

    def foreign(self) -> str:
        """The conjunct in standard SQL."""
        word = "BETWEEN" if self.operator in SPANS else self.operator.removeprefix("VALID ")
        return _plain(self.column, word, [literal(v) for v in self.values])


def _plain(column: str, word: str, given: list[str]) -> str:
    if word == "BETWEEN":
        return f"{column} BETWEEN {given[0]} AND {given[1]}"
    if word == "IN":
        return f"{column} IN ({', '.join(given)})"
    return f"{column} {word} {given[0]}" if given else f"{column} {word}"


@dataclass(frozen=True)
class Predicate:
    """Conjuncts that all hold; without any, everything does."""

    conjuncts: tuple[Conjunct, ...]

    def holds(self, row: dict[str, Any]) -> bool:
        return all(c.holds(row[c.column]) for c in self.conjuncts)

    def text(self) -> str:
        return " AND ".join(c.text() for c in self.conjuncts) or "true"

    def foreign(self) -> str:
        return " AND ".join(c.foreign() for c in self.conjuncts) or "true"


def conjuncts(column: str, domain: list[Any]) -> Strategy:
    """Comparisons of a column with values of its domain."""
    value = st.sampled_from(domain)
    is_null = st.sampled_from(["IS NULL", "IS NOT NULL"]).map(lambda word: Conjunct(column, word))
    if any(isinstance(v, list) for v in domain):
        return is_null
    return st.one_of(
        st.builds(lambda o, v: Conjunct(column, o, (v,)), st.sampled_from(list(OPERATORS)), value),
        st.builds(lambda v: Conjunct(column, "=", (v,)), value),
        st.lists(value, min_size=1, max_size=3).map(lambda vs: Conjunct(column, "IN", tuple(vs))),
        st.tuples(value, value).map(lambda vs: Conjunct(column, "BETWEEN", vs)),
        is_null,
    )


def temporal(around: int) -> Strategy:
    """Comparisons of the time, most of them near a moment."""
    near = st.integers(-130, 60).map(lambda i: around + i)
    words = st.sampled_from([*OPERATORS, *(f"VALID {o}" for o in OPERATORS)])
    return st.one_of(
        st.builds(
            lambda s, a, b: Conjunct(TIME, s, (a, a + b)), st.sampled_from(SPANS), near, st.integers(-2, 60)
        ),
        st.builds(lambda o, a: Conjunct(TIME, o, (a,)), words, near),
        st.lists(near, min_size=1, max_size=3).map(lambda vs: Conjunct(TIME, "IN", tuple(vs))),
        st.sampled_from([Conjunct(TIME, ">", (10**20,)), Conjunct(TIME, "<", (10**20,))]),
    )


@dataclass
class Model:
    """The table: every row that is stored, and where its time is."""

    period: int | None
    delay: int
    columns: dict[str, str] = field(default_factory=lambda: dict(COLUMNS))
    rows: dict[int, Row] = field(default_factory=dict)
    largest: int | None = None
    advanced: int | None = None
    late: int = 0
    received: int = 0

    @property
    def watermark(self) -> int | None:
        seen = [] if self.largest is None else [self.largest - self.delay]
        return max([*seen, *([] if self.advanced is None else [self.advanced])], default=None)

    @property
    def horizon(self) -> int | None:
        return None if self.watermark is None or self.period is None else self.watermark - self.period

    @property
    def around(self) -> int:
        """A time near which something happens."""
        return self.watermark or 0

    def insert(self, rows: list[Row]) -> None:
        for row in rows:
            time = row[1]
            self.late += self.watermark is not None and time < self.watermark
            self.largest = time if self.largest is None else max(self.largest, time)
            self.rows[row[0]] = row
        self.received += len(rows)

    def retain(self) -> None:
        """Forget the compartments that are wholly beyond the period."""
        if self.horizon is None or self.period is None:
            return
        width = max(1, -(-self.period // 10))
        first = self.horizon // width * width
        self.rows = {n: row for n, row in self.rows.items() if row[1] >= first}

    def add_column(self, name: str, type_: str) -> None:
        self.columns[name] = type_
        self.rows = {n: (*row, None) for n, row in self.rows.items()}

    def named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.columns, row, strict=True))

    def is_visible(self, row: Row) -> bool:
        return self.horizon is None or bool(row[1] >= self.horizon)

    def matches(self, predicate: Predicate) -> list[int]:
        """The numbers of the visible rows for which the predicate holds."""
        return [n for n, row in self.rows.items() if self.is_visible(row) and predicate.holds(self.named(row))]

    def answer(self, predicate: Predicate) -> Counter[Row]:
        return Counter(frozen(self.rows[n]) for n in self.matches(predicate))

    def update(self, predicate: Predicate, column: str, value: Any) -> int:
        found = self.matches(predicate)
        for n in found:
            self.rows[n] = tuple((self.named(self.rows[n]) | {column: value}).values())
        return len(found)

    def delete(self, predicate: Predicate) -> int:
        found = self.matches(predicate)
        for n in found:
            del self.rows[n]
        return len(found)


def frozen(row: Row) -> Row:
    """A row that can be counted."""
    return tuple(tuple(v) if isinstance(v, list) else v for v in row)
