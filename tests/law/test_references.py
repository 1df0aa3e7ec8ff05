"""The references of the law tests agree with each other, and with the view's own text where Spark can run it.

Everything is an ordinary table here: no view is involved. What is marked as understood by DuckDB gives the same
there as in Spark, and the way approximate answers are judged takes Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.law.compare import as_references, difference
from tests.law.grammar import Insert, a_feed
from tests.law.reference import DuckReference, Past, SparkReference
from tests.law.shapes import PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tests.law.grammar import Feed, Query
    from tests.law.reference import Start

SEED, QUERIES = 2_000_003, 20
ONLY_IN_VIEWS = {"aggregate:first", "aggregate:last", PYTHON}
"""What a view's text says that Spark does not know, or knows without an order."""


class Both:
    """Both references over all rows of a feed, and over none."""

    def __init__(self, feed: Feed, db: Any) -> None:
        self.past = Past(versions={name: [rows] for name, rows in feed.contents.items()})
        self.duck = DuckReference(self.past, feed.streams, feed.tables)
        self.spark = SparkReference(self.past, feed.streams, feed.tables)
        self.spark.db = db
        for step in feed.steps:
            if isinstance(step, Insert):
                self.past.inserts.append((step.stream, step.rows))
        nothing = self.past.now()
        self.starts: list[Start] = [type(nothing)(0, nothing.versions), nothing]

    def disagreements(self, query: Query) -> Iterator[str]:
        for start in self.starts:
            plain = self.spark.answer(query.sql.plain, start)
            if query.sql.duck is not None:
                foreign = self.duck.answer(query.sql.duck, start)
                yield from told(
                    query,
                    "DuckDB",
                    difference(foreign, plain, as_references(query.outs), is_ordered=query.is_ordered),
                )
            if not query.sql.covers & ONLY_IN_VIEWS:
                said = self.spark.answer(query.sql.view, start)
                yield from told(
                    query, "the view's text", difference(said, plain, query.outs, is_ordered=query.is_ordered)
                )


def told(query: Query, who: str, wrong: str | None) -> Iterator[str]:
    if wrong is not None:
        texts = f"    plain: {query.sql.plain}\n    duck: {query.sql.duck}"
        yield f"{query.name}: {who} says other than Spark\n{wrong}\n{texts}"


def test_duckdb_and_spark_give_the_same_wherever_both_are_trusted(db: Any) -> None:
    feed = a_feed(SEED, QUERIES)
    both = Both(feed, db)
    wrong = [text for query in feed.queries for text in both.disagreements(query)]
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
