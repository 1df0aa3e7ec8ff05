"""Runs a feed against a database and judges what its continuous queries delivered.

Nothing stops at the first mistake: refusals, errors and wrong deliveries are gathered and told together, each with
the seed, the query, the reference's text and what happened. A query that was refused is left alone. Where
something else fails the feed ends there.

Judged are the instants, exactly and in order; the sequence numbers, from 1 without gaps; and the rows, as a
multiset but where an order is promised. Select-project-joins under EMIT NEW are judged by all their deliveries
together: which rows came at which instant, whatever the deliveries they came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.law.compare import Answer, difference
from tests.law.data import values_clause
from tests.law.feed import told
from tests.law.grammar import Change
from tests.law.pieces import EXACT, Out, Type
from tests.law.shapes import FUNCTION, mix
from tests.law.windows.expected import Oracle, frozen
from tests.law.windows.manners import Jobs, manner_of, working
from tests.law.windows.steps import Advance, Create, Drain, Insert, Mend, Pause, Reopen, Resume, Say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.database import Database
    from tests.law.compare import Row
    from tests.law.windows.coverage import Coverage
    from tests.law.windows.data import Ticks
    from tests.law.windows.expected import Delivery
    from tests.law.windows.grammar import Query
    from tests.law.windows.steps import Feed, Step

Open = Callable[[], "Database"]

INSTANT = Out("instant", Type.LONG, EXACT)
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A delivery as the database made it."""

    instant: int
    sequence: int
    names: tuple[str, ...]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Failure:
    """A query that broke the law."""

    query: Query
    what: str
    history: str

    def text(self, seed: int, length: int) -> str:
        number = self.query.number
        return (
            f"{self.query.name} of seed {seed} ({self.query.shape}): {self.what}\n"
            f"    query:  {self.query.text}\n"
            f"    DuckDB: {self.query.reference}\n"
            f"    after:  {self.history}\n"
            f"    again:  pytest tests/law/windows/test_windows.py --first-seed {seed} --cases 1 --view {number}"
            f" --inserts {length}"
        )


class Run:
    """One feed in one database."""

    def __init__(self, feed: Feed, open_database: Open, coverage: Coverage, oracle: Oracle | None = None) -> None:
        self.feed = feed
        self._oracle = oracle
        self.failures: dict[int, Failure] = {}
        self.ended: str | None = None
        self.jobs = Jobs()
        self._open = open_database
        self._coverage = coverage
        self._settings: dict[str, str] = {}
        self._happened: list[str] = []
        self._manner = manner_of(feed.seed)

    @property
    def is_lawful(self) -> bool:
        return not self.failures and self.ended is None

    def run(self) -> None:
        """Everything that happens in the feed, then the judgement."""
        with working(self._manner) as self.jobs:
            self._run()
        for query in self.feed.queries:
            self._coverage.add(query, passed=self.ended is None and query.number not in self.failures)

    def _run(self) -> None:
        self._connect()
        try:
            self._prepare()
            for step in self.feed.steps:
                self._happened.append(shown(step))
                self._do(step)
            self._judge()
        except Exception as error:
            self.ended = told(error)
        finally:
            self._db.close()

    def _connect(self) -> None:
        self._db = self._open()
        self._db.create_function(FUNCTION, mix, returns="BIGINT")
        if not self._manner.merges_here:
            self._db._engine.queries.answers.merges_here = False

    def _prepare(self) -> None:
        for text in [s.create for s in self.feed.streams] + [t.create for t in self.feed.tables]:
            self._db.sql(text)
        for name, rows in self.feed.contents.items():
            self._db.insert(name, rows)

    def _do(self, step: Step) -> None:
        match step:
            case Create(queries):
                for number in queries:
                    self._create(self.feed.query(number))
            case Insert():
                self._insert(step)
            case Advance(stream, to):
                self._db.sql(f"ADVANCE {stream} TO {self.feed.stream(stream).ticks.literal(to)}")
            case Change(table, _, added, statement):
                self._db.insert(table, added) if added is not None else self._db.sql(statement)
            case Mend() | Say():
                self._say(step.statement)
            case Pause(query) | Resume(query) if query not in self.failures:
                self._db.sql(f"{type(step).__name__.upper()} {self.feed.query(query).name}")
            case Drain():
                self._db.drain()
            case Reopen():
                self._reopen()

    def _create(self, query: Query) -> None:
        try:
            self._db.sql(query.statement)
        except Exception as error:
            self._fail(query, f"refused: {told(error)}")

    def _insert(self, step: Insert) -> None:
        stream = self.feed.stream(step.stream)
        rows = stream.table(step.rows)
        if step.as_sql:
            self._db.sql(f"INSERT INTO {stream.name} VALUES {values_clause(stream.relation, rows)}")
        else:
            self._db.insert(stream.name, rows)

    def _say(self, statement: str) -> None:
        self._db.sql(statement)
        if statement.startswith("SET "):
            self._settings[statement.split()[1]] = statement

    def _reopen(self) -> None:
        """Settings end with the database; a feed's hold until they are changed."""
        self._db.close()
        self._connect()
        for statement in self._settings.values():
            self._db.sql(statement)

    # Judging

    def _judge(self) -> None:
        oracle = self._oracle or Oracle(self.feed)
        for query in self.feed.queries:
            if query.number not in self.failures:
                self._judge_one(oracle, query)

    def _judge_one(self, oracle: Oracle, query: Query) -> None:
        ticks = query.slots[0].stream.ticks
        try:
            found = [read(d, query, ticks) for d in self._db.results(query.name, since=0)]
        except Exception as error:
            self._fail(query, f"cannot be read: {told(error)}")
            return
        expected = oracle.deliveries(query)
        self._coverage.instants += len(expected)
        wrong = judged(query, found, expected)
        if wrong is not None:
            self._fail(query, wrong)

    def _fail(self, query: Query, what: str) -> None:
        self.failures[query.number] = Failure(query, what, "; ".join(self._happened))

    def report(self) -> str:
        """All failures, one after the other."""
        parts = [
            f"{len(self.failures)} of {len(self.feed.queries)} queries of seed {self.feed.seed} broke the law"
        ]
        parts += [s.create for s in self.feed.streams]
        if self.ended is not None:
            parts.append(f"the feed ended after {'; '.join(self._happened)}: {self.ended}")
        return "\n\n".join([*parts, *(f.text(self.feed.seed, self.feed.length) for f in self.failures.values())])


def read(delivery: Any, query: Query, ticks: Ticks) -> Found:
    """A delivery of the database; raises where it is not of this query or leaves out instants."""
    assert delivery.query == query.name, f"a delivery of {delivery.query}"
    assert not delivery.skipped, f"{delivery.skipped} instants skipped at {delivery.instant}"
    answer = Answer.of(delivery.to_arrow())
    return Found(ticks.tick(delivery.instant), delivery.sequence, answer.names, frozen(answer.rows))


def judged(query: Query, found: Sequence[Found], expected: Sequence[Delivery]) -> str | None:
    """What is wrong with the deliveries of a query; None if nothing is."""
    numbers = [f.sequence for f in found]
    if numbers != list(range(1, len(found) + 1)):
        return f"the sequence numbers are {numbers}"
    names = tuple(out.name for out in query.delivered)
    other = next((f.names for f in found if f.names != names), None)
    if other is not None:
        return f"columns {other} instead of {names}"
    return together(query, found, expected) if query.is_monotonic else one_by_one(query, found, expected)


def together(query: Query, found: Sequence[Found], expected: Sequence[Delivery]) -> str | None:
    """All rows of all deliveries with their instants."""
    outs = (INSTANT, *query.outs)
    times = [f.instant for f in found]
    if not query.is_on_commit and times != sorted(times):
        return f"instants go back: {times}"
    rows = [(f.instant, *row) for f in found for row in f.rows]
    wanted = [(d.instant, *row) for d in expected for row in d.rows]
    return difference(
        answer(outs, rows), answer(outs, wanted), outs, is_ordered=query.is_on_commit and len(query.identity) == 1
    )


def one_by_one(query: Query, found: Sequence[Found], expected: Sequence[Delivery]) -> str | None:
    wrong = wrong_instants([f.instant for f in found], [d.instant for d in expected])
    if wrong is not None:
        return wrong
    for f, d in zip(found, expected, strict=True):
        wrong = wrong_rows(query, f.rows, d)
        if wrong is not None:
            return f"delivery {f.sequence} at {d.instant} is not what DuckDB says\n{wrong}"
    return None


def wrong_instants(found: list[int], wanted: list[int]) -> str | None:
    if found == wanted:
        return None
    pairs = zip(found, wanted, strict=False)
    place = next((i for i, (f, w) in enumerate(pairs) if f != w), min(len(found), len(wanted)))
    return (
        f"{len(found)} instants instead of {len(wanted)}, different from the {place + 1}-th on\n"
        f"    expected: … {wanted[max(0, place - 2) : place + SHOWN]}\n"
        f"    found:    … {found[max(0, place - 2) : place + SHOWN]}"
    )


def wrong_rows(query: Query, found: list[Row], delivery: Delivery) -> str | None:
    """Compares stretch by stretch; as a whole where the number of rows is wrong already."""
    runs = delivery.runs if len(found) == len(delivery.rows) else (max(len(found), len(delivery.rows)),)
    at, outs = 0, query.delivered
    for length in runs:
        mine, theirs = found[at : at + length], delivery.rows[at : at + length]
        wrong = difference(answer(outs, mine), answer(outs, theirs), outs, is_ordered=False)
        if wrong is not None:
            where = "" if len(runs) == 1 else f"    in order: rows from {at + 1} on\n"
            return f"{where}{wrong}"
        at += length
    return None


def answer(outs: Sequence[Out], rows: list[Row]) -> Answer:
    return Answer(tuple(out.name for out in outs), (), rows)


def shown(step: Step) -> str:
    """A step in a few words."""
    match step:
        case Create(queries):
            return f"create {len(queries)} queries" if len(queries) > 3 else f"create {queries}"
        case Insert(stream, times):
            return f"{stream} {list(times)}"
        case Advance(stream, to):
            return f"advance {stream} to {to}"
        case Change(table, _, _, statement):
            return statement or f"insert into {table}"
        case Mend() | Say():
            return step.statement
        case Pause(query) | Resume(query):
            return f"{type(step).__name__.lower()} q{query}"
    return type(step).__name__.lower()


def only(feed: Feed, numbers: Sequence[int]) -> Feed:
    """The feed with these queries alone; everything else happens as before."""

    def kept(step: Step) -> Step | None:
        match step:
            case Create(queries):
                return Create(tuple(q for q in queries if q in numbers))
            case Pause(query) | Resume(query):
                return step if query in numbers else None
        return step

    steps = tuple(s for s in map(kept, feed.steps) if s is not None)
    return replace(feed, queries=tuple(q for q in feed.queries if q.number in numbers), steps=steps)
