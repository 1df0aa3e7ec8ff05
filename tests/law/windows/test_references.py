"""The text that Millstream is given means the same to Spark as the reference's does to DuckDB.

The rows of windows are ordinary tables here: no continuous query is involved. Where the two differ, it is the
grammar that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.law.compare import Answer, as_references, difference
from tests.law.pieces import placed
from tests.law.windows.expected import Oracle, frozen
from tests.law.windows.steps import a_feed

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.law.windows.grammar import Query
    from tests.law.windows.steps import Feed

SEED, QUERIES = 2_000_003, 30


class Tables:
    """Rows as ordinary tables of the database; equal ones are made once."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._made: list[pa.Table] = []

    def name(self, definition: str, rows: pa.Table) -> str:
        place = next((i for i, known in enumerate(self._made) if known.equals(rows)), None)
        if place is None:
            place = len(self._made)
            self._made.append(rows)
            self._db.sql(f"CREATE TABLE rows{place} ({definition})")
            self._db.insert(f"rows{place}", rows)
        return f"rows{place}"


def disagreement(feed: Feed, query: Query, oracle: Oracle, tables: Tables, db: Any) -> str | None:
    wanted, read = oracle.fullest(query)
    definitions = {t.name: t.definition for t in feed.tables}
    definitions |= {slot.name: slot.relation.definition for slot in query.slots}
    names = {name: tables.name(definitions[name], rows) for name, rows in read.items()}
    text = placed(query.sql.plain, lambda name, _: names[name])
    found = Answer.of(db.sql(text).to_arrow())
    expected = Answer(found.names, (), [row[: len(query.outs)] for row in wanted])
    given = Answer(found.names, (), frozen(found.rows))
    wrong = difference(given, expected, as_references(query.outs), is_ordered=query.is_ordered)
    return wrong and f"{query.name} ({query.shape})\n{wrong}\n    Spark:  {text}\n    DuckDB: {query.reference}"


def test_duckdb_and_spark_give_the_same_over_the_rows_of_windows(db: Any) -> None:
    feed = a_feed(SEED, QUERIES)
    oracle, tables = Oracle(feed), Tables(db)
    wrong = [disagreement(feed, query, oracle, tables, db) for query in feed.queries]
    if any(wrong):
        pytest.fail("\n\n".join(text for text in wrong if text), pytrace=False)
