"""Random relations and their rows.

Every stream has `n`, unique among the rows of all streams, and `ts`, its time, unique as well and mostly in order.
Every table has `u`, unique in it. Every relation has the key `ki`, and other keys from the same few values: joins
meet, multiply and miss. Doubles are small multiples of an eighth, so that sums are exact in any order. Nulls,
ties and skew are common, NaN stands in the column `mn` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.law.pieces import Term, Type, a_few, chance, quoted, sql

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

START = datetime(2024, 1, 1, tzinfo=UTC)
FIRST_DAY = date(2024, 1, 1)
TIME, SEQUENCE, UNIQUE = "ts", "n", "u"

ARROW = {
    Type.BYTE: pa.int8(),
    Type.SHORT: pa.int16(),
    Type.INT: pa.int32(),
    Type.LONG: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.TEXT: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.DATE: pa.date32(),
    Type.TIME: pa.timestamp("us", "UTC"),
    Type.DECIMAL: pa.decimal128(12, 2),
}

KEY_VALUES: dict[Type, list[Any]] = {
    Type.BYTE: [1, 2, 127, 0, -128],
    Type.SHORT: [1, 300, 0, 2, -32768],
    Type.INT: [1, 2, 0, 3, -1, 5, 4],
    Type.LONG: [2, 1, 2**40, 0, -5],
    Type.DOUBLE: [0.5, 0.0, -1.25, 3.0],
    Type.TEXT: ["a", "b", "", "ab", "Zoë", "it's", "x y"],
    Type.BOOL: [True, False],
    Type.DATE: [FIRST_DAY + timedelta(days=d) for d in (0, 31, 1, 400)],
    Type.TIME: [START + timedelta(hours=h) for h in (0, 5, 30)],
    Type.DECIMAL: [Decimal("1.50"), Decimal("0.00"), Decimal("-2.25"), Decimal("10.00")],
}

MEASURES: dict[Type, Callable[[Random], Any]] = {
    Type.BYTE: lambda rng: rng.randint(-128, 127),
    Type.SHORT: lambda rng: rng.randint(-32768, 32767),
    Type.INT: lambda rng: rng.randint(-100, 100),
    Type.LONG: lambda rng: rng.randint(-(2**40), 2**40),
    Type.DOUBLE: lambda rng: rng.randint(-4096, 4096) / 8,
    Type.TEXT: lambda rng: "".join(rng.choices("abcXYZ é", k=rng.randint(0, 4))),
    Type.BOOL: lambda rng: chance(rng, 0.7),
    Type.DATE: lambda rng: FIRST_DAY + timedelta(days=rng.randint(0, 60)),
    Type.TIME: lambda rng: START + timedelta(seconds=rng.randint(0, 30_000)),
    Type.DECIMAL: lambda rng: Decimal(rng.randint(-99999, 99999)).scaleb(-2),
}

LETTERS = {
    Type.BYTE: "y",
    Type.SHORT: "h",
    Type.INT: "i",
    Type.LONG: "l",
    Type.DOUBLE: "f",
    Type.TEXT: "s",
    Type.BOOL: "b",
    Type.DATE: "d",
    Type.TIME: "t",
    Type.DECIMAL: "c",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column and where its values come from."""

    name: str
    type: Type
    is_key: bool = False
    has_nan: bool = False
    is_unique: bool = False
    nulls: float = 0.0

    def value(self, rng: Random) -> Any:
        if chance(rng, self.nulls):
            return None
        if self.has_nan and chance(rng, 0.08):
            return float("nan")
        if not self.is_key:
            return MEASURES[self.type](rng)
        values = KEY_VALUES[self.type]
        return rng.choices(values, [0.55**i for i in range(len(values))])[0]


@dataclass(frozen=True, slots=True)
class Relation:
    """A stream or a table."""

    name: str
    columns: tuple[Column, ...]
    is_stream: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(c.name, ARROW[c.type]) for c in self.columns])

    @property
    def definition(self) -> str:
        """The columns, for CREATE."""
        return ", ".join(f"{quoted(c.name).view} {c.type.value}" for c in self.columns)

    @property
    def create(self) -> str:
        if self.is_stream:
            return f"CREATE STREAM {self.name} ({self.definition}) TIMESTAMP BY {TIME}"
        return f"CREATE TABLE {self.name} ({self.definition})"

    def terms(self, alias: str) -> tuple[Term, ...]:
        """The columns under an alias."""
        return tuple(self._term(alias, c) for c in self.columns)

    def _term(self, alias: str, column: Column) -> Term:
        text = sql("{a}.{c}", a=alias, c=quoted(column.name))
        is_large = column.type is Type.LONG or column.is_unique
        return Term(text, column.type, column.is_key, column.has_nan, is_large, is_of_stream=self.is_stream)


def a_schema(rng: Random) -> list[Column]:
    """Keys, measures, in any order; `ki`, `mi` and `mf` always."""
    keys = [Column("k" + LETTERS[t], t, is_key=True, nulls=nulls(rng)) for t in a_few(rng, OTHER_KEYS, 1, 3)]
    rest = [Column("m" + LETTERS[t], t, nulls=nulls(rng)) for t in a_few(rng, OTHER_MEASURES, 1, 4)]
    always = [
        Column("ki", Type.INT, is_key=True, nulls=nulls(rng)),
        Column("mi", Type.INT, nulls=nulls(rng)),
        Column("mf", Type.DOUBLE, nulls=nulls(rng)),
    ]
    odd = [Column(rng.choice(["Order", "two words", "Ünit"]), Type.INT, nulls=0.1)] if chance(rng, 0.3) else []
    found = keys + rest + always + odd
    return rng.sample(found, len(found))


NARROW = [Type.BYTE, Type.SHORT]
OTHER_KEYS = [*NARROW, Type.LONG, Type.DOUBLE, Type.TEXT, Type.BOOL, Type.DATE, Type.TIME, Type.DECIMAL]
OTHER_MEASURES = [*NARROW, Type.LONG, Type.TEXT, Type.BOOL, Type.DATE, Type.TIME, Type.DECIMAL]


def nulls(rng: Random) -> float:
    return rng.choice([0.0, 0.05, 0.1, 0.3])


def a_stream(rng: Random, name: str) -> Relation:
    own = [Column(SEQUENCE, Type.LONG, is_unique=True), Column(TIME, Type.TIME, is_unique=True)]
    with_nan = [Column("mn", Type.DOUBLE, has_nan=True, nulls=0.1)] if chance(rng, 0.6) else []
    return Relation(name, tuple(own + with_nan + a_schema(rng)), is_stream=True)


def a_table(rng: Random, name: str) -> Relation:
    return Relation(name, (Column(UNIQUE, Type.INT, is_unique=True), *a_schema(rng)), is_stream=False)


def stream_rows(rng: Random, stream: Relation, count: int, offset: int, step: int) -> pa.Table:
    """Rows with sequence numbers ≡ offset (mod step), so that streams do not share any."""
    numbers = [i * step + offset for i in rng.sample(range(count), count)]
    times = [START + timedelta(seconds=60 * i + offset) for i in jumbled(rng, count)]
    given = {SEQUENCE: numbers, TIME: times}
    columns = {c.name: given.get(c.name) or [c.value(rng) for _ in range(count)] for c in stream.columns}
    return pa.table(columns, stream.schema)


def jumbled(rng: Random, count: int) -> list[int]:
    """Numbers in order, but for neighbours."""
    return sorted(range(count), key=lambda i: i + rng.random() * 12)


def table_rows(rng: Random, table: Relation, first: int, count: int) -> pa.Table:
    """Rows numbered from `first` on."""
    columns = {
        c.name: list(range(first, first + count)) if c.is_unique else [c.value(rng) for _ in range(count)]
        for c in table.columns
    }
    return pa.table(columns, table.schema)


def literal(value: Any, type_: Type) -> str:
    """A value as SQL that both engines read."""
    if value is None:
        return "NULL"
    if type_ is Type.DOUBLE:
        return "CAST('NaN' AS DOUBLE)" if value != value else f"CAST({value!r} AS DOUBLE)"
    if type_ is Type.DATE:
        return f"DATE '{value:%Y-%m-%d}'"
    if type_ is Type.TIME:
        return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}'"
    if type_ is Type.TEXT:
        return "'" + str(value).replace("'", "''") + "'"
    return str(value).upper() if type_ is Type.BOOL else str(value)


def values_clause(relation: Relation, rows: pa.Table) -> str:
    """Rows behind VALUES."""
    types = [c.type for c in relation.columns]
    return ", ".join(f"({', '.join(map(inserted, row, types))})" for row in tuples(rows))


def inserted(value: Any, type_: Type) -> str:
    """A value in VALUES: literals stay plain, which the insert without Spark can take."""
    if type_ is Type.DOUBLE and value is not None and value == value:
        return repr(value)
    return literal(value, type_)


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def cut(rng: Random, rows: pa.Table, sizes: Sequence[int]) -> list[pa.Table]:
    """Rows in consecutive batches of random sizes from those given; the last one has what is left."""
    batches, at = [], 0
    while at < rows.num_rows:
        size = rng.choice(sizes)
        batches.append(rows.slice(at, size))
        at += size
    return batches
