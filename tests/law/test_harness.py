"""The law tests notice what they are there for.

A database that is none keeps views as the law has them, asking DuckDB anew at every read; then it is made to err
in one of the ways an incremental one can. Every such mistake has to be told, and none where there is none. No
Spark is involved.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.law.compare import Answer, agrees
from tests.law.coverage import Coverage
from tests.law.feed import Run, only
from tests.law.grammar import Change, Insert, a_feed
from tests.law.pieces import BAG, EXACT, FLOAT, VARIANCE, Kind, Match
from tests.law.reference import DuckReference, Past, Start

if TYPE_CHECKING:
    from tests.law.grammar import Feed, Query

SEED, QUERIES = 0, 30

Twist = Callable[["Imagined", "Query", Start], pa.Table]


class Imagined:
    """A database as far as a feed can tell, without create_function."""

    def __init__(self, feed: Feed, twist: Twist) -> None:
        self.feed = feed
        self.twist = twist
        self.past = Past()
        self.duck = DuckReference(self.past, feed.streams, feed.tables)
        self.starts: dict[int, Start] = {}
        self.changes = [step for step in feed.steps if isinstance(step, Change)]
        self.reads: Counter[int] = Counter()

    def sql(self, text: str) -> Any:
        if found := re.match(r"CREATE CONTINUOUS VIEW v(\d+) ", text):
            self.starts[int(found[1])] = self.past.now()
        elif found := re.match(r"INSERT INTO (\w+) VALUES", text):
            self.past.inserts.append((found[1], self.next_rows()))
        elif re.match(r"UPDATE|DELETE", text):
            change = next(c for c in self.changes if c.statement == text)
            self.past.versions[change.table].append(change.content)
        elif found := re.match(r"SELECT \* FROM v(\d+)", text):
            return self.read(int(found[1]))
        return self

    def next_rows(self) -> pa.Table:
        steps = [step for step in self.feed.steps if isinstance(step, Insert)]
        return steps[len(self.past.inserts)].rows

    def read(self, number: int) -> Any:
        query = next(q for q in self.feed.queries if q.number == number)
        self.reads[number] += 1
        table = self.twist(self, query, self.starts[number])
        return type("Result", (), {"to_arrow": lambda _: table})()

    def insert(self, name: str, rows: pa.Table) -> int:
        if name in {t.name for t in self.feed.tables}:
            versions = self.past.versions.setdefault(name, [])
            versions.append(pa.concat_tables([versions[-1], rows]) if versions else rows)
        else:
            self.past.inserts.append((name, rows))
        return int(rows.num_rows)

    def drain(self) -> None: ...

    def close(self) -> None: ...


def lawful(db: Imagined, query: Query, start: Start) -> pa.Table:
    """The right answer: approximate ones made from what they are judged by."""
    table = db.duck.ask(text_of(db, query, start))
    for place, out in enumerate(query.outs):
        made = MADE.get(out.match.kind)
        if made is not None:
            lists = table.column(place).to_pylist()
            values = [None if v is None else made(out.match, v) for v in lists]
            type_ = table.schema.field(place).type.value_type
            table = table.set_column(place, out.name, pa.array(values, type_))
    return table


def text_of(db: Imagined, query: Query, start: Start) -> str:
    db.duck._catch_up()
    return db.past.text(query.sql.duck or "", start)


def most_frequent(_: Match, values: list[Any]) -> Any:
    return Counter(values).most_common(1)[0][0] if values else None


def at_rank(match: Match, values: list[Any]) -> Any:
    return sorted(values)[max(0, math.ceil(match.rank * len(values)) - 1)] if values else None


def last(_: Match, values: list[Any]) -> Any:
    return values[-1] if values else None


MADE: dict[Kind, Callable[[Match, list[Any]], Any]] = {
    Kind.ANY: last,
    Kind.MODE: most_frequent,
    Kind.QUANTILE: at_rank,
}


# Mistakes


def forgets_a_batch(db: Imagined, query: Query, start: Start) -> pa.Table:
    number = next(i for i, (_, rows) in enumerate(db.past.inserts) if rows.num_rows > 4) if db.past.inserts else 0
    return with_inserts(db, [x for i, x in enumerate(db.past.inserts) if i != number], query, start)


def counts_a_batch_twice(db: Imagined, query: Query, start: Start) -> pa.Table:
    return with_inserts(db, [*db.past.inserts, *db.past.inserts[-1:]], query, start)


def with_inserts(db: Imagined, inserts: list[Any], query: Query, start: Start) -> pa.Table:
    other = Imagined(db.feed, lawful)
    other.past.inserts.extend(inserts)
    other.past.versions.update(db.past.versions)
    return lawful(other, query, start)


def starts_too_early(db: Imagined, query: Query, start: Start) -> pa.Table:
    return lawful(db, query, replace(start, inserts=0))


def reads_tables_anew(db: Imagined, query: Query, start: Start) -> pa.Table:
    """Tables below the grouping are not pinned."""
    return lawful(db, query, replace(start, versions=db.past.now().versions))


def pins_all_tables(db: Imagined, query: Query, start: Start) -> pa.Table:
    """Tables above the grouping are."""
    db.duck._catch_up()
    pinned = re.sub(r"@(t\d+)\b\^?", r"@\1^", query.sql.duck or "")
    text = replace(query, sql=replace(query.sql, duck=pinned))
    return lawful(db, text, start)


def drops_null_groups(db: Imagined, query: Query, start: Start) -> pa.Table:
    table = lawful(db, query, start)
    for out in query.outs:
        if out.is_key:
            table = table.filter(pa.compute.is_valid(table.column(out.name)))
    return table


def is_stale(db: Imagined, query: Query, start: Start) -> pa.Table:
    """The last insert is not in yet."""
    return with_inserts(db, db.past.inserts[:-1], query, start)


MISTAKES = (
    forgets_a_batch,
    counts_a_batch_twice,
    starts_too_early,
    reads_tables_anew,
    pins_all_tables,
    drops_null_groups,
    is_stale,
)


def run(twist: Twist) -> Run:
    feed = a_feed(SEED, QUERIES)
    feed = only(feed, [q.number for q in feed.queries if q.sql.duck is not None])
    opened: Any = Imagined(feed, twist)
    found = Run(feed, lambda: opened, Coverage(), sample=0.0)
    found.run()
    return found


def test_a_lawful_database_passes() -> None:
    found = run(lawful)
    assert found.is_lawful, found.report()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_mistake_is_told(mistake: Twist) -> None:
    found = run(mistake)
    assert found.ended is None, found.ended
    assert found.failures
    assert f"of seed {SEED} broke the law" in found.report()


@pytest.mark.parametrize(
    ("match", "found", "expected", "verdict"),
    [
        (EXACT, 1, 1, True),
        (EXACT, None, 0, False),
        (FLOAT, 0.1 + 0.2, 0.3, True),
        (FLOAT, 0.3001, 0.3, False),
        (FLOAT, math.nan, math.nan, True),
        (FLOAT, math.nan, None, False),
        (FLOAT, None, math.nan, False),
        (VARIANCE, 2.0000001, 2.0, True),
        (VARIANCE, 2.00001, 2.0, False),
        (BAG, [1, 2, 2], [2, 1, 2], True),
        (BAG, [1, 2], [1, 2, 2], False),
        (BAG, None, [], False),
        (BAG, [math.nan], [math.nan], True),
        (Match(Kind.ANY), 2, [1, 2, None], True),
        (Match(Kind.ANY), None, [1, 2, None], True),
        (Match(Kind.ANY), None, [1, 2], False),
        (Match(Kind.ANY), 3, [1, 2, None], False),
        (Match(Kind.ANY), None, [], True),
        (Match(Kind.ANY), math.nan, [math.nan], True),
        (Match(Kind.MODE), 2, [1, 1, 2, 2, 3], True),
        (Match(Kind.MODE), 3, [1, 1, 2, 2, 3], False),
        (Match(Kind.MODE), None, [], True),
        (Match(Kind.QUANTILE, 0.5), 50, list(range(100)), True),
        (Match(Kind.QUANTILE, 0.5), 60, list(range(100)), False),
        (Match(Kind.QUANTILE, 0.5), 50.5, list(range(100)), False),
        (Match(Kind.QUANTILE, 0.9), 7, [7] * 9, True),
        (Match(Kind.SKETCH), 95, 100, True),
        (Match(Kind.SKETCH), 190, 100, False),
    ],
)
def test_values_are_judged_by_kind(match: Match, found: Any, expected: Any, verdict: bool) -> None:
    assert agrees(match, found, expected) is verdict


def test_an_answer_keeps_no_rows_without_columns() -> None:
    assert Answer.of(pa.table({})).rows == []
