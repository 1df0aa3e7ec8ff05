"""Pieces that generated queries are put together from.

A piece of SQL is held in three tongues: `view` is what Millstream is given, `plain` says the same to Spark over
ordinary tables, `duck` to DuckDB. They differ where Millstream defines more than Spark does (`first` is by
time) and where a reference computes what an approximate answer is judged by. `duck` is None where DuckDB
has no such function or gives it another meaning. A relation is written `@name`; a table whose content a view
pins at its creation is written `@name^`. Every piece carries the labels of what it covers.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

T = TypeVar("T")

RELATION = re.compile(r"@(\w+)(\^?)")


class Type(Enum):
    """The types that columns have; the value is SQL."""

    BYTE = "TINYINT"
    SHORT = "SMALLINT"
    INT = "INT"
    LONG = "BIGINT"
    DOUBLE = "DOUBLE"
    TEXT = "STRING"
    BOOL = "BOOLEAN"
    DATE = "DATE"
    TIME = "TIMESTAMP"
    DECIMAL = "DECIMAL(12,2)"
    LIST = "ARRAY"

    @property
    def is_number(self) -> bool:
        return self.is_whole or self.is_narrow or self in (Type.DOUBLE, Type.DECIMAL)

    @property
    def is_whole(self) -> bool:
        """Whether two of them are added here: they stay far from the bounds of their type."""
        return self in (Type.INT, Type.LONG)

    @property
    def is_narrow(self) -> bool:
        """Whether two of them may be too much for their type; with a constant they are INT."""
        return self in (Type.BYTE, Type.SHORT)


class Kind(Enum):
    """How a value of a view is judged; what stands in brackets is what the reference computes."""

    EXACT = "equal"
    FLOAT = "equal but for the last digits"
    VARIANCE = "equal but for the error of summing squares"
    BAG = "the same values in any order"
    ANY = "one of the values, nulls among them [all values]"
    MODE = "one of the most frequent values [all values]"
    QUANTILE = "a value whose rank is near [all values]"
    SKETCH = "a count near [the exact count]"


@dataclass(frozen=True, slots=True)
class Match:
    """The judgement of a column; `rank` is a quantile's."""

    kind: Kind
    rank: float = 0.0


EXACT = Match(Kind.EXACT)
FLOAT = Match(Kind.FLOAT)
VARIANCE = Match(Kind.VARIANCE)
BAG = Match(Kind.BAG)


@dataclass(frozen=True, slots=True)
class Sql:
    """A piece in three tongues, and what it covers: `aggregate:sum`, `join:below inner`, `shape:cte`."""

    view: str
    plain: str
    duck: str | None
    covers: frozenset[str] = frozenset()

    def covering(self, *labels: str) -> Sql:
        return replace(self, covers=self.covers | set(labels))

    def without_duck(self) -> Sql:
        return replace(self, duck=None)


def same(text: str) -> Sql:
    """A piece that all three read alike."""
    return Sql(text, text, text)


def each(view: str, duck: str | None) -> Sql:
    """A piece that DuckDB writes in another way than Spark."""
    return Sql(view, view, duck)


def sql(template: str, /, **parts: Sql | str) -> Sql:
    """A template with `{name}`s filled in, in each tongue; parts that it does not name are left out."""
    given = {name: part for name, part in parts.items() if f"{{{name}}}" in template}
    pieces = {name: same(part) if isinstance(part, str) else part for name, part in given.items()}
    ducks = {name: p.duck for name, p in pieces.items()}
    return Sql(
        template.format(**{name: p.view for name, p in pieces.items()}),
        template.format(**{name: p.plain for name, p in pieces.items()}),
        None if None in ducks.values() else template.format(**ducks),
        frozenset().union(*(p.covers for p in pieces.values())),
    )


def listed(parts: Iterable[Sql], glue: str = ", ") -> Sql:
    """Pieces one after the other."""
    given = list(parts)
    names = [f"p{i}" for i in range(len(given))]
    return sql(glue.join(f"{{{n}}}" for n in names), **dict(zip(names, given, strict=True)))


def placed(text: str, place: Callable[[str, bool], str]) -> str:
    """A text with its relations put in; `place` gets the name and whether it is pinned."""
    return RELATION.sub(lambda found: place(found[1], bool(found[2])), text)


def quoted(name: str) -> Sql:
    """A name that may need quotes."""
    return same(name) if re.fullmatch(r"[a-z_]\w*", name) else each(f"`{name}`", f'"{name}"')


@dataclass(frozen=True, slots=True)
class Term:
    """An expression over the rows at hand."""

    sql: Sql
    type: Type
    is_key: bool = False
    has_nan: bool = False
    is_large: bool = False
    is_exact: bool = True
    is_of_stream: bool = True

    def made(self, template: str, type_: Type | None = None) -> Term:
        """Another expression over this one, `{x}` in the template."""
        return replace(self, sql=sql(template, x=self.sql), type=type_ or self.type)


@dataclass(frozen=True, slots=True)
class Source:
    """The rows below a grouping: FROM, the conjuncts of WHERE, and what can be named.

    `sequence` tells the rows apart, but for copies that a join made. `time` is the stream's time, by which
    `first` and `last` go. Both are None where there is none. A grouping names its keys and measures by `letters`,
    others than the rows' own, so that GROUP BY a name means one thing.
    """

    rows: Sql
    where: tuple[Sql, ...]
    terms: tuple[Term, ...]
    sequence: Term | None = None
    time: Term | None = None
    letters: str = "ga"

    @property
    def text(self) -> Sql:
        if not self.where:
            return sql("FROM {rows}", rows=self.rows)
        return sql("FROM {rows} WHERE {where}", rows=self.rows, where=listed(self.where, " AND "))

    def filtered(self, *conjuncts: Sql) -> Source:
        return replace(self, where=(*self.where, *conjuncts))


@dataclass(frozen=True, slots=True)
class Out:
    """A column of a block's result. `is_exact` allows it in conditions and keys above."""

    name: str
    type: Type
    match: Match
    is_key: bool = False
    is_exact: bool = True

    def term(self, alias: str) -> Term:
        return Term(same(f"{alias}.{self.name}"), self.type, self.is_key, is_exact=self.is_exact)


@dataclass(frozen=True, slots=True)
class Block:
    """A whole SELECT. `identity` names columns that tell its rows apart; None where nothing does."""

    sql: Sql
    outs: tuple[Out, ...]
    identity: tuple[str, ...] | None = None
    is_ordered: bool = False

    @property
    def exact(self) -> tuple[Out, ...]:
        return tuple(out for out in self.outs if out.is_exact)

    @property
    def keys(self) -> tuple[Out, ...]:
        return tuple(out for out in self.outs if out.is_key)

    def covering(self, *labels: str) -> Block:
        return replace(self, sql=self.sql.covering(*labels))


class Deck(Generic[T]):
    """Cards drawn in random order, each as often as the others, so that few draws reach everything."""

    def __init__(self, rng: Random, cards: Sequence[T]) -> None:
        self._rng = rng
        self._cards = tuple(cards)
        self._pile: deque[T] = deque()

    def draw(self, allowed: Callable[[T], bool] = lambda _: True) -> T:
        """The next card that is allowed; the others keep their place."""
        for _ in range(2):
            for card in self._pile:
                if allowed(card):
                    self._pile.remove(card)
                    return card
            self._pile.extend(self._rng.sample(self._cards, len(self._cards)))
        return next(card for card in self._pile if allowed(card))


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def a_few(rng: Random, given: Sequence[Any], least: int, most: int) -> list[Any]:
    """Between `least` and `most` different ones, or all there are."""
    return rng.sample(list(given), min(len(given), rng.randint(least, most)))
