"""Runs a feed against a database and judges what its views say.

Nothing stops at the first mistake: refusals, errors and wrong answers are gathered and told together, each with
the seed, the query, the reference's text and the batches so far. A view that failed once is left alone. Where an
insert itself fails, or a reference, the feed ends there.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.law.compare import Answer, difference, type_difference
from tests.law.data import values_clause
from tests.law.grammar import Change, Create, Feed, Insert, Query, Read, Reopen, Switch, Upkeep
from tests.law.pieces import placed
from tests.law.reference import DuckReference, Past, SparkReference, Start, expected
from tests.law.shapes import FUNCTION, PYTHON, mix
from tests.law.ways import way_of

if TYPE_CHECKING:
    from millstream.database import Database
    from tests.law.coverage import Coverage
    from tests.law.grammar import Step
    from tests.law.ways import Way, Work

SAMPLE = 0.1
"""This part of all reads is judged by Spark."""
EXECUTORS = ("kernel", "spark_sql")
"""Feeds of even seeds run on the first, which leaves to Spark what it cannot do, odd ones on the second."""

Open = Callable[[], "Database"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A view that broke the law."""

    query: Query
    what: str
    reference: str
    history: str

    def text(self, seed: int) -> str:
        return (
            f"{self.query.name} of seed {seed}: {self.what}\n"
            f"    view:  {view_text(self.query)}\n"
            f"    {self.reference}\n"
            f"    after: {self.history}\n"
            f"    again: pytest tests/law/test_views.py --first-seed {seed} --cases 1 --view {self.query.number}"
        )


def view_text(query: Query) -> str:
    """The query as Millstream is given it."""
    return placed(query.sql.view, lambda name, _: name)


class Run:
    """One feed in one database."""

    def __init__(
        self,
        feed: Feed,
        open_database: Open,
        coverage: Coverage,
        sample: float = SAMPLE,
        way: Way | None = None,
    ) -> None:
        self.feed = feed
        self.way = way or way_of(feed.seed)
        self.executor = EXECUTORS[feed.seed % 2]
        self.failures: dict[int, Failure] = {}
        self.ended: str | None = None
        self._open = open_database
        self._coverage = coverage
        self._sample = sample
        self._rng = Random(f"sample of {feed.seed}")
        self._past = Past()
        self._starts: dict[int, Start] = {}
        self._happened: list[str] = []
        self._duck = DuckReference(self._past, feed.streams, feed.tables)
        self._spark = SparkReference(self._past, feed.streams, feed.tables)

    @property
    def is_lawful(self) -> bool:
        return not self.failures and self.ended is None

    def run(self) -> Work:
        """Everything that happens in the feed; gives what was seen of the work."""
        with pytest.MonkeyPatch.context() as patch:
            work = self.way.take(patch)
            self._run()
        self._coverage.jobs.update(work.jobs)
        return work

    def _run(self) -> None:
        self._connect()
        try:
            self._prepare()
            for step in self.feed.steps:
                self._do(step)
        except Exception as error:
            self.ended = told(error)
        finally:
            self._db.close()
            self._duck.close()
        for query in self.feed.queries:
            self._coverage.add(query)

    def _connect(self) -> None:
        self._db = self.way.opened(self._open())
        self._db.sql(f"SET executor = {self.executor}")
        self._spark.db = self._db
        register = getattr(self._db, "create_function", None)
        if register is not None:
            register(FUNCTION, mix, returns="BIGINT")
        elif any(PYTHON in q.sql.covers for q in self.feed.queries):
            self._leave_out_functions()

    def _leave_out_functions(self) -> None:
        kept = [q.number for q in self.feed.queries if PYTHON not in q.sql.covers]
        self._coverage.left_out["the database has no create_function"] += len(self.feed.queries) - len(kept)
        self.feed = only(self.feed, kept)

    def _prepare(self) -> None:
        for relation in (*self.feed.streams, *self.feed.tables):
            self._db.sql(relation.create)
        for name, rows in self.feed.contents.items():
            self._db.insert(name, rows)
            self._past.versions[name] = [rows]

    @singledispatchmethod
    def _do(self, step: Step) -> None:
        raise TypeError(step)

    @_do.register
    def _create(self, step: Create) -> None:
        for number in step.views:
            query = self._query(number)
            start = self._past.now()
            try:
                self._db.sql(f"CREATE CONTINUOUS VIEW {query.name} AS {view_text(query)}")
            except Exception as error:
                self._fail(query, f"refused: {told(error)}")
            else:
                self._starts[number] = start
        self._happened.append(f"create {len(step.views)} views")

    @_do.register
    def _insert(self, step: Insert) -> None:
        self._happened.append(f"#{len(self._past.inserts)} {step.stream} {step.rows.num_rows} rows")
        if step.as_sql:
            relation = self.feed.relations[step.stream]
            self._happened[-1] += " as SQL"
            self._db.sql(f"INSERT INTO {step.stream} VALUES {values_clause(relation, step.rows)}")
        else:
            self._db.insert(step.stream, step.rows)
        self._past.inserts.append((step.stream, step.rows))

    @_do.register
    def _change(self, step: Change) -> None:
        self._happened.append(step.statement or f"insert into {step.table}")
        if step.added is not None:
            self._db.insert(step.table, step.added)
        else:
            self._db.sql(step.statement)
        self._past.versions[step.table].append(step.content)

    @_do.register
    def _upkeep(self, _: Upkeep) -> None:
        self._happened.append("upkeep")
        self._db.drain()

    @_do.register
    def _switch(self, _: Switch) -> None:
        self.executor = next(e for e in EXECUTORS if e != self.executor)
        self._happened.append(self.executor)
        self._db.sql(f"SET executor = {self.executor}")

    @_do.register
    def _reopen(self, _: Reopen) -> None:
        self._happened.append("reopen")
        self._db.close()
        self._connect()

    @_do.register
    def _read(self, step: Read) -> None:
        self._happened.append(f"read {len(step.views)} views")
        for number in step.views:
            by_spark = self._rng.random() < self._sample
            if number in self._starts and number not in self.failures:
                self._judge(self._query(number), by_spark=by_spark)

    # Judging

    def _judge(self, query: Query, *, by_spark: bool) -> None:
        try:
            found = Answer.of(self._db.sql(f"SELECT * FROM {query.name}").to_arrow())
        except Exception as error:
            self._fail(query, f"cannot be read: {told(error)}")
            return
        start = self._starts[query.number]
        wanted, who = expected(query, start, self._duck, self._spark, by_spark=by_spark)
        self._coverage.reads[who] += 1
        wrong = difference(found, wanted, query.outs, is_ordered=query.is_ordered)
        if wrong is None and who == SparkReference.name:
            wrong = type_difference(found, wanted, query.outs)
        if wrong is not None:
            self._fail(query, f"not what {who} says\n{wrong}", who)

    def _fail(self, query: Query, what: str, who: str = "") -> None:
        reference = "(no reference asked)"
        if who:
            template = query.sql.plain if who == SparkReference.name else query.sql.duck or ""
            reference = f"{who}: {self._past.text(template, self._starts[query.number])}"
        self.failures[query.number] = Failure(query, what, reference, "; ".join(self._happened))

    def _query(self, number: int) -> Query:
        return next(q for q in self.feed.queries if q.number == number)

    def report(self) -> str:
        """All failures, one after the other."""
        parts = [f"{len(self.failures)} of {len(self.feed.queries)} views of seed {self.feed.seed} broke the law"]
        if self.ended is not None:
            parts.append(f"the feed ended after {'; '.join(self._happened)}: {self.ended}")
        return "\n\n".join([*parts, *(f.text(self.feed.seed) for f in self.failures.values())])


def told(error: Exception) -> str:
    """An error as the user sees it; a stranger with its last lines."""
    detail = getattr(error, "detail", None)
    if hasattr(error, "condition"):
        return f"{error}" + (f" ({detail})" if detail else "")
    return "".join(traceback.format_exception(error)[-3:])


def only(feed: Feed, numbers: list[int]) -> Feed:
    """The feed with these views alone; everything else happens as before."""
    steps = tuple(
        replace(step, views=tuple(v for v in step.views if v in numbers))
        if isinstance(step, Create | Read)
        else step
        for step in feed.steps
    )
    return replace(feed, queries=tuple(q for q in feed.queries if q.number in numbers), steps=steps)
