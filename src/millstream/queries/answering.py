"""Runs the texts of a plan: partial results of new rows, and the answers of the instants that are due.

One job makes the partial results of all of a query's parts, one answers all instants. Place-holders in the texts
become relations over what a `Feed` gives: rows of streams, held rows, states, instants.
"""

from __future__ import annotations

import re
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millstream.catalog.records import Moment, TableInfo
from millstream.errors import StatementError
from millstream.execute import query
from millstream.execute.passes import fuse, union
from millstream.execute.relation import ONE_PARTITION_ROWS
from millstream.execute.types import stored_type
from millstream.execute.write import collect_passes
from millstream.plan.bind import bind_text
from millstream.plan.incremental import NOW, merged_name, state_name, stream_name
from millstream.plan.sharing import ROWS
from millstream.plan.standing import (
    ENTER,
    FOR_EVER,
    INSTANTS,
    LAST,
    LEAVE,
    ROW_NUMBER,
    TIME,
    N,
    Sampling,
    WindowKind,
    basket_name,
    opened,
    rows_name,
    window_name,
)
from millstream.queries import here, tasks
from millstream.queries.instants import Instant, mark_of
from millstream.queries.tasks import Large
from millstream.queries.windows import Numbering, rows_sql
from millstream.rewrite.panes import E, U, merged
from millstream.schema import TIMESTAMP, Column, ObjectKind, Schema, quote
from millstream.storage import segment, state
from millstream.storage.reader import Reader
from millstream.storage.scan import Scan
from millstream.views.keeping import AUTO, SPARK_SQL
from millstream.views.overlay import Overlay, no_new_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.plan.incremental import Part
    from millstream.plan.standing import Answering, QueryPlan
    from millstream.queries.place import Place
    from millstream.storage.lake import Lake

MARKS = (TIME, ROW_NUMBER, ENTER, LEAVE, LAST)
MOST_LISTED = 256
"""So many instants are written out in a text; more become a relation."""
PIECES, MEMBERS = "__ms_pieces_{}__", "__ms_members_{}__"
MEMBER = f"s.{ENTER} <= i.x AND i.x <= s.{LEAVE} AND i.tau <= s.{LAST}"


@dataclass
class Feed:
    """What the names in texts stand for: `rows` by window, as SQL; `scans` by name."""

    rows: dict[int, str] = field(default_factory=dict)
    scans: dict[str, Scan] = field(default_factory=dict)
    arrow: dict[str, pa.Table] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """What other names stand for, as SQL."""
    large: dict[int, Large] = field(default_factory=dict)
    """New rows of windows that are too many for the driver."""

    def put(self, name: str, rows: pa.Table) -> None:
        """Let a name stand for an Arrow table."""
        self.scans[name] = scan_of(name, rows)
        self.arrow[name] = rows


def scan_of(name: str, rows: pa.Table) -> Scan:
    schema = Schema(tuple(Column(f.name, f.type) for f in rows.schema))
    ids = tuple(range(1, len(schema.columns) + 1))
    table = TableInfo(-1, name, ObjectKind.TABLE, schema, ids, "", 0)
    return Scan(table, 0, (), inlined=rows.cast(schema.arrow), token=uuid.uuid4().hex)


class Answers:
    """See the module's contract."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations) -> None:
        self._lake = lake
        self._spark = spark
        self._relations = relations
        self.executor: Callable[[], str] = lambda: AUTO
        self.views: Callable[[TableInfo, Reader], Any] | None = None
        """How continuous views and queries are read; set by whoever wires the parts."""
        self.catch_up: Callable[[Sequence[str]], None] = lambda _: None
        """Brings the continuous views among some names up to date."""
        self._local = threading.local()
        self.merges_here = True
        """Whether the driver merges the states that Arrow can merge, whatever the executor; else Spark does."""

    def reader(self, moment: Moment | None = None) -> Reader:
        """What sees the database at a moment, by default as it is now."""
        return Reader(self._lake, views=self.views, moment=moment)

    @property
    def _reader(self) -> Reader | None:
        found: Reader | None = getattr(self._local, "reader", None)
        return found

    @contextmanager
    def at(self, reader: Reader) -> Iterator[None]:
        """Answer from what a reader sees; another thread, which makes a query, say, sees what there is now."""
        self._local.reader = reader
        try:
            yield
        finally:
            self._local.reader = None

    # Partial results

    def types(self, sql: str, feed: Feed) -> Mapping[str, str]:
        """The types of a fragment's columns, as Spark's analysis has them."""
        return {f.name: f.dataType.simpleString() for f in self._run(_fed(sql, feed), feed).frame.schema}

    def schema(self, sql: str, feed: Feed) -> pa.Schema:
        """The columns of a fragment, as states store them."""
        found = self._run(_fed(sql, feed), feed).schema()
        return pa.schema([pa.field(f.name, stored_type(f)) for f in found])

    @property
    def most_here(self) -> int:
        """Up to how many rows of a stream the driver reads itself."""
        return 0 if self.executor() == SPARK_SQL else here.HERE_ROWS

    def partials(
        self, parts: Sequence[Part], schemas: Sequence[pa.Schema], feed: Feed, rows: int
    ) -> list[pa.Table]:
        """What parts make of new rows, in one job, or here if they are few."""
        if not any(PLACE.search(_without(p.fragment, feed.arrow)) for p in parts):
            done = here.partials(parts, schemas, feed.arrow)
            if done is not None:
                return done
        if self.most_here and all(s in feed.large for p in parts for s in p.streams):
            done = tasks.partials(self._lake, self._spark.session, parts, schemas, feed.large)
            if done is not None:
                return done
        tables = [state.provisional("query", i, "state", s) for i, s in enumerate(schemas)]
        passes = fuse(enumerate(parts))
        found = self._run(_fed(union(passes), feed), feed)
        frame = found.frame.coalesce(1) if rows <= ONE_PARTITION_ROWS else found.frame
        made = collect_passes(frame, passes, tables, found.splice)
        return [made.get(i, s.empty_table()) for i, s in enumerate(schemas)]

    def complaint(self, plan: QueryPlan, answering: Answering) -> str | None:
        """What Spark has against a text; None if nothing."""
        feed, text = empty_feed(self._lake, plan), self._windows(answering.text, plan)
        for number, part in enumerate(plan.parts):
            if merged_name(number) in text:
                text = text.replace(merged_name(number), merged(part, number))
                text = text.replace(state_name(number), f"({opened(part.fragment, plan.pairs)})")
        listed = _listed(plan, [Instant(0, 0)], None)
        try:
            self._run(self._with_instants(_fed(text, feed), plan, listed, feed), feed).schema()
        except StatementError as error:
            return error.message
        return None

    # States that Spark merges

    def merged(self, part: Part, schema: pa.Schema, wanted: Sequence[Sequence[pa.Table]]) -> list[pa.Table]:
        """Partial results merged, each of some lists of pieces to one row a group, in one job."""
        feed, own = Feed(), [k for k in part.keys if k not in (E, U)]
        rows = _needed(feed, 0, schema, list(range(len(wanted))), wanted)
        text = part.merged(f"{rows} AS m", keys=(E, *own))
        names = [f for f in schema if f.name not in (E, U)]
        found = apart(self._run(text, feed).to_arrow(), len(wanted))
        return [rows.select([f.name for f in names]).cast(pa.schema(names)) for rows in found]

    def merged_rows(self, part: Part, rows: pa.Table) -> pa.Table:
        """Partial results merged to one row for each combination of a part's keys, in one job."""
        feed = Feed()
        feed.put(PIECES.format(0), rows)
        found = self._run(part.merged(f"{PIECES.format(0)} AS m"), feed).to_arrow()
        return found.select(rows.column_names).cast(rows.schema)

    @staticmethod
    def put_state(
        feed: Feed, number: int, schema: pa.Schema, due: Sequence[Instant], covers: Sequence[Sequence[pa.Table]]
    ) -> None:
        """Let a state's name stand for the rows that each instant needs of it."""
        feed.texts[state_name(number)] = _needed(feed, number, schema, [i.x for i in due], covers)

    # Answers

    def answers(
        self,
        plan: QueryPlan,
        answering: Answering | None,
        due: Sequence[Instant],
        feed: Feed,
        types: Sequence[pa.DataType],
    ) -> list[pa.Table]:
        """The rows of each instant, with the columns that they are ordered by."""
        text = self._one_by_one(plan, due) if answering is None else self._windows(answering.text, plan)
        return apart(self._rows(_fed(text, feed), plan, due, feed, types), len(due))

    def derivations(
        self,
        plan: QueryPlan,
        due: Sequence[Instant],
        feed: Feed,
        seen: Sequence[int],
        place: Place,
        types: Sequence[pa.DataType],
    ) -> list[pa.Table]:
        """The derivations that are new, each at its first instant; `seen` are positions of the last step."""
        assert plan.deltas is not None
        of = {m: [f"q.{m}{i}" for i in range(plan.deltas.rows)] for m in MARKS}
        enter, time = _most("greatest", of[ENTER]), _most("greatest", of[TIME])
        tests = [f"i.p < {enter}", f"{enter} <= i.x"]
        tests += [f"i.x <= {_most('least', of[LEAVE])}", f"i.tau <= {_most('least', of[LAST])}"]
        before = place.answered
        if plan.is_early:
            if plan.sample.kind is Sampling.INTERVAL or before is None or due[0].x <= before:
                # The first one is asked again, for rows that have come since.
                before = None
            tests.append(f"{time} <= {mark_of(place)}L")
            if place.passed is not None:
                fresh = [f"{time} > {place.passed}L"]
                fresh += [f"{r} >= {p}L" for r, p in zip(of[ROW_NUMBER], seen, strict=True)]
                # Late rows may have waited for an instant that nobody was asked about before.
                fresh.append(f"i.x > {-FOR_EVER if place.answered is None else place.answered}L")
                tests.append(f"({' OR '.join(fresh)})")
        inner = plan.deltas.text
        for number in range(len(plan.windows)):
            inner = inner.replace(window_name(number), _plain_rows(plan, number))
        text = f"SELECT i.n AS {N}, q.* FROM ({inner}) AS q JOIN {INSTANTS} AS i ON {' AND '.join(tests)}"
        return apart(self._rows(_fed(text, feed), plan, due, feed, types, before), len(due))

    def committed(self, plan: QueryPlan, feed: Feed, types: Sequence[pa.DataType]) -> pa.Table:
        """What a selection makes of new rows, whenever they are."""
        assert plan.deltas is not None
        text = _fed(plan.deltas.text.replace(window_name(0), _plain_rows(plan, 0)), feed)
        found = self._here(text, plan, feed, types)
        return self._run(text, feed).to_arrow() if found is None else found

    def evaluated(self, texts: Sequence[str], types: Sequence[pa.DataType], rows: pa.Table) -> pa.Table:
        """Expressions over rows with row numbers, a column each, in the order of these; one job at most."""
        columns = ", ".join(f"{text} AS c{i}" for i, text in enumerate(texts))
        text = f"SELECT {ROW_NUMBER}, {columns} FROM {rows_name(0)} AS {ROWS}"
        feed = Feed()
        feed.put(rows_name(0), rows)
        found = None if self.executor() == SPARK_SQL else here.answer(text, feed.arrow, types)
        found = self._run(text, feed).to_arrow() if found is None else found
        order = np.argsort(found.column(ROW_NUMBER).to_numpy(), kind="stable")
        return found.take(pa.array(order)).drop_columns([ROW_NUMBER])

    def _rows(
        self,
        text: str,
        plan: QueryPlan,
        due: Sequence[Instant],
        feed: Feed,
        types: Sequence[pa.DataType],
        answered: int | None = None,
    ) -> pa.Table:
        """The rows of a text for the instants that are due: by the kernel if it can, else by Spark."""
        listed = _listed(plan, due, answered)
        feed.arrow[INSTANTS] = listed
        found = self._here(text, plan, feed, types)
        if found is not None:
            return found
        return self._run(self._with_instants(text, plan, listed, feed), feed).to_arrow()

    def _here(self, text: str, plan: QueryPlan, feed: Feed, types: Sequence[pa.DataType]) -> pa.Table | None:
        if self.executor() == SPARK_SQL or PLACE.search(_without(text, feed.arrow)):
            return None
        tables = {n: t for n, t in feed.arrow.items() if n in text}
        for name in plan.tables:
            found = self._small_table(name)
            if found is None:
                return None
            tables[name] = found
        return here.answer(text, tables, types)

    def _small_table(self, name: str) -> pa.Table | None:
        """The rows of a table as it is now, if they are few."""
        reader = self._reader or self.reader()
        table = reader.tables(reader.snapshot()).get(name.lower())
        if table is None or table.kind is not ObjectKind.TABLE:
            return None
        scan = reader.scan(table, reader.snapshot(), ())
        if scan.rows > here.HERE_ROWS:
            return None
        parts = [segment.read(self._lake.folder(table), table, f)[0] for f in scan.files]
        parts += [] if scan.inlined is None else [scan.inlined]
        return pa.concat_tables([table.schema.arrow.empty_table(), *parts])

    def _windows(self, text: str, plan: QueryPlan) -> str:
        for number, window in enumerate(plan.windows):
            more = ""
            if window.kind is WindowKind.CUT:
                start = f"i.tau - {window.length}L"
                start = start if plan.is_integer_time else f"timestamp_micros({start})"
                more = f", {start} AS window_start, i.now AS window_end"
            source = (
                f"(SELECT s.*, i.n AS {N}{more} FROM {rows_name(number)} AS s JOIN {INSTANTS} AS i ON {MEMBER})"
            )
            text = text.replace(window_name(number), source)
        return text

    def _one_by_one(self, plan: QueryPlan, due: Sequence[Instant]) -> str:
        """For the few shapes that cannot be asked for all instants at once: all in one job all the same."""
        made = []
        for number, at in enumerate(due):
            text = plan.plain
            for window in range(len(plan.windows)):
                member = MEMBER.replace("i.x", f"{at.x}L").replace("i.tau", f"{at.tau}L")
                rows = f"(SELECT s.* FROM {_plain_rows(plan, window, at)} AS s WHERE {member})"
                text = text.replace(window_name(window), rows)
            now = f"{at.tau}L" if plan.is_integer_time else f"timestamp_micros({at.tau}L)"
            made.append(f"SELECT {number}L AS {N}, q.* FROM ({text.replace(NOW, now)}) AS q")
        return " UNION ALL ".join(made)

    @staticmethod
    def _with_instants(text: str, plan: QueryPlan, listed: pa.Table, feed: Feed) -> str:
        now = "tau" if plan.is_integer_time else "timestamp_micros(tau)"
        columns = ["n", "x", "tau", "p"]
        if listed.num_rows <= MOST_LISTED:
            values = zip(*(listed.column(c).to_pylist() for c in columns), strict=True)
            rows = ", ".join(f"({', '.join(f'{v}L' for v in row)})" for row in values)
            rows = f"VALUES {rows} AS v({', '.join(columns)})"
        else:
            feed.put("__ms_listed__", listed.select(columns))
            rows = "__ms_listed__"
        return text.replace(INSTANTS, f"(SELECT n, x, tau, p, {now} AS now FROM {rows})")

    def _run(self, text: str, feed: Feed) -> query.Rows:
        bound = bind_text(text, Overlay(self._reader or self.reader(), feed.scans))
        return query.run(self._spark, bound, self._relations, {})


PLACE = re.compile(r"__ms_(?:rows|basket|late|state|stream|merged|new|old|all)_\d+__|timestamp_micros|unix_micros")
"""What the kernel would have to know and does not."""


def _without(text: str, names: Mapping[str, pa.Table]) -> str:
    for name in names:
        text = text.replace(name, "")
    return text


def _listed(plan: QueryPlan, due: Sequence[Instant], answered: int | None) -> pa.Table:
    """The instants as a table."""
    before = [-FOR_EVER if answered is None else answered, *(i.x for i in due[:-1])]
    columns = {"n": list(range(len(due))), "x": [i.x for i in due], "tau": [i.tau for i in due], "p": before}
    made = pa.table({n: pa.array(v, pa.int64()) for n, v in columns.items()})
    now = made.column("tau") if plan.is_integer_time else made.column("tau").cast(TIMESTAMP)
    return made.append_column("now", now)


def _most(function: str, columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else f"{function}({', '.join(columns)})"


def _plain_rows(plan: QueryPlan, number: int, at: Instant | None = None) -> str:
    window = plan.windows[number]
    if window.kind is not WindowKind.CUT or at is None:
        return rows_name(number)
    start, end = (
        f"{t}L" if plan.is_integer_time else f"timestamp_micros({t}L)" for t in (at.tau - window.length, at.tau)
    )
    return f"(SELECT *, {start} AS window_start, {end} AS window_end FROM {rows_name(number)})"


def _fed(text: str, feed: Feed) -> str:
    for number, rows in feed.rows.items():
        made = f"({rows})" if " " in rows else rows
        text = text.replace(stream_name(number), f"(SELECT * FROM {made} WHERE {LEAVE} >= {ENTER})")
        text = text.replace(rows_name(number), made)
    for name, rows in feed.texts.items():
        text = text.replace(name, rows)
    return text


def _needed(
    feed: Feed, number: int, schema: pa.Schema, places: Sequence[int], covers: Sequence[Sequence[pa.Table]]
) -> str:
    """The rows that each place needs, with it as their `E`; every piece is handed to Spark once."""
    pieces = {id(p): p for cover in covers for p in cover}
    numbers = {key: i for i, key in enumerate(pieces)}
    own = pa.schema([f for f in schema if f.name not in (E, U)])
    rows = pa.concat_tables([own.empty_table(), *pieces.values()])
    of = np.repeat(np.arange(len(pieces)), [p.num_rows for p in pieces.values()])
    feed.put(PIECES.format(number), rows.append_column("piece", pa.array(of, pa.int64())))
    pairs = [(x, numbers[id(p)]) for x, cover in zip(places, covers, strict=True) for p in cover]
    members = {n: pa.array([p[i] for p in pairs], pa.int64()) for i, n in enumerate((E, "piece"))}
    feed.put(MEMBERS.format(number), pa.table(members))
    return (
        f"(SELECT m.{E}, s.* FROM {MEMBERS.format(number)} AS m"
        f" JOIN {PIECES.format(number)} AS s ON s.piece = m.piece)"
    )


def apart(rows: pa.Table, count: int) -> list[pa.Table]:
    """The rows of each instant, without the number that tells them apart."""
    numbers = np.asarray(rows.column(0).to_numpy(), np.int64)
    rest = rows.select(list(range(1, rows.num_columns)))
    order = np.argsort(numbers, kind="stable")
    edges = np.searchsorted(numbers[order], np.arange(count + 1))
    ordered = rest.take(pa.array(order)) if not np.array_equal(order, np.arange(len(order))) else rest
    return [ordered.slice(a, b - a) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]


def empty_feed(lake: Lake, plan: QueryPlan) -> Feed:
    """The windows of a plan without rows: for those who ask for columns alone."""
    feed = Feed()
    known = {t.id: t for t in lake.catalog.tables().values()}
    for number, window in enumerate(plan.windows):
        table = known[window.stream]
        feed.scans[basket_name(table.id)] = no_new_rows(table, lake.catalog.current)
        numbering = None if plan.sample.is_by_time else Numbering(0, 0)
        rows = rows_sql(window, number, table, plan.sample, has_late=False, numbering=numbering)
        if window.kind is WindowKind.SESSION:
            assert table.time is not None
            time = quote(table.time.column)
            rows = f"SELECT *, {time} AS window_start, {time} AS window_end FROM ({rows})"
        feed.rows[number] = rows
    return feed
