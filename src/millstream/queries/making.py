"""CREATE CONTINUOUS QUERY: which windows a query reads, when it answers, and the plan that answers it.

What is wrong with a query is said here, before anything is stored: windows on tables, lengths that do not fit the
stream's time, samples that make no sense, and everything that Spark's analysis finds.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.catalog.views import written_schema
from millstream.errors import Condition, Span, StatementError
from millstream.execute import query as execute
from millstream.execute.failures import Splice
from millstream.execute.types import stored_type
from millstream.plan import cut as cuts
from millstream.plan.bind import bind, find_named
from millstream.plan.incremental import NOW
from millstream.plan.standing import QueryPlan, Sample, Sampling, Window, WindowKind, opened, window_name
from millstream.queries import wording
from millstream.queries.answering import Answers, empty_feed
from millstream.queries.emitting import CHANGE
from millstream.rewrite import standing
from millstream.rewrite.refuse import check_arguments, refused
from millstream.rewrite.sharing import UnsharedError, shared_of
from millstream.schema import Column, ObjectKind, Schema, is_nested, quote
from millstream.sql import statements as st
from millstream.sql.cut import find_cuts
from millstream.sql.dialect import WINDOW
from millstream.sql.parse import parse_one
from millstream.storage.reader import Reader
from millstream.views.overlay import Overlay, no_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from millstream.catalog.records import TableInfo
    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.plan.incremental import Static
    from millstream.sql.cut import Cut
    from millstream.storage.lake import Lake

STREAMING = (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
CUT_NAME = "__ms_cut_{}__"
BOUNDS = ("window_start", "window_end")


@dataclass
class _Reading:
    """A query's windows as they are found in it."""

    known: Mapping[str, TableInfo]
    cuts: Sequence[Cut]
    whole: st.Window | None
    offset: int
    windows: list[Window] = field(default_factory=list)
    streams: list[TableInfo] = field(default_factory=list)
    columns: dict[str, Sequence[str]] = field(default_factory=dict)
    has_window: list[bool] = field(default_factory=list)

    def place(self, table: exp.Table) -> None:
        """Give a stream in FROM the name of its window."""
        alias = table.alias_or_name
        if table.name.startswith("__ms_cut_"):
            cut = self.cuts[int(table.name.split("_")[4])]
            stream = find_named(cut.stream, self.known)
            made, is_said = _cut_window(cut, stream), True
        else:
            stream = self.known.get(table.name.lower())  # type: ignore[assignment]
            said = table.meta.get(WINDOW)
            if stream is None or stream.kind not in STREAMING:
                if said is not None and stream is not None:
                    raise _no_stream(stream, said.span.shifted(self.offset))
                return
            said = said or self.whole
            made, is_said = _window(said, stream, self.offset), said is not None
        number = self._number(made, stream, is_said)
        table.set("this", exp.to_identifier(window_name(number), quoted=False))
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))

    def _number(self, window: Window, stream: TableInfo, is_said: bool) -> int:
        if window in self.windows:
            return self.windows.index(window)
        self.windows.append(window)
        self.streams.append(stream)
        self.has_window.append(is_said)
        more = BOUNDS if window.kind in (WindowKind.CUT, WindowKind.SESSION) else ()
        name = window_name(len(self.windows) - 1)
        self.columns[name] = (*stream.schema.names, *more)
        return len(self.windows) - 1


@dataclass(frozen=True)
class Made:
    """A query that is ready to be created."""

    plan: QueryPlan
    schema: Schema
    streams: tuple[TableInfo, ...]


class Maker:
    """Plans continuous queries."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations, answers: Answers) -> None:
        self._lake = lake
        self._spark = spark
        self._relations = relations
        self._answers = answers

    def make(self, body: st.ContinuousSelect, text: str) -> Made:
        """The plan of a query's body; `text` is the statement around it."""
        _check_options(body)
        reader = Reader(self._lake)
        known = reader.tables(reader.snapshot())
        asked = body.query
        check_arguments(asked)
        simple = self._simple(body, known)
        if simple is not None:
            return simple
        found = find_cuts(asked)
        for cut in found:
            _located(lambda c=cut: cuts.check(c, find_named(c.stream, known)), asked.offset)  # type: ignore[misc]
        schema = self._schema(asked, found, known, reader, text)
        placed, splice = wording.edited(asked, [(c.span, _named(i, c)) for i, c in enumerate(found)])
        reading = _Reading(known, found, asked.window, asked.offset)
        reading.columns |= {name: t.schema.names for name, t in known.items() if t.kind is not ObjectKind.VIEW}
        with _refusals(asked, splice):
            normal = standing.read(_tree(placed), reading.columns, _opener(known), reading.place)
        if not reading.windows:
            raise StatementError(
                Condition.QUERY_REFUSED,
                "this query reads no stream, so it would never answer",
                hint="Read a STREAM or STREAMING TABLE in it, or ask once with SELECT.",
            )
        sample = _sample(body, reading)
        plan = self._plan(normal, body, reading, sample, tuple(t.name for t in known.values()))
        if plan.emit == "CHANGES" and schema.get(CHANGE) is not None:
            raise StatementError(
                Condition.RESERVED_NAME, f"{CHANGE!r} is what EMIT CHANGES calls its first column"
            )
        return Made(plan, schema, tuple(reading.streams))

    @staticmethod
    def _simple(body: st.ContinuousSelect, known: Mapping[str, TableInfo]) -> Made | None:
        """A selection of plain columns by plain tests, which needs no word of Spark's; None for anything else."""
        asked = body.query
        stream = known.get(asked.tables[0].name.lower()) if len(asked.tables) == 1 else None
        if (
            stream is None
            or stream.kind not in STREAMING
            or not _is_bare(body)
            or next(wording.clock_calls(asked), None)
        ):
            return None
        name = stream.name.lower()
        reading = _Reading({name: stream}, (), None, asked.offset, columns={name: stream.schema.names})
        try:
            tree = _tree(asked)
            if not _names_columns_alone(tree, stream):
                return None
            normal = standing.read(tree, reading.columns, lambda _: None, reading.place)
            texts = standing.selection_texts(normal)
            shared = shared_of(normal, [_types(stream)])
        except (UnsharedError, StatementError):
            # Whoever plans it with Spark's help will say what is wrong with it.
            return None
        columns = _columns_of(tree, stream) if shared.is_plain else None
        if texts is None or columns is None or len(columns) != len(shared.outputs):
            return None
        assert stream.time is not None
        plan = QueryPlan(
            tuple(reading.windows), Sample(Sampling.COMMIT), st.Emit.NEW.value, stream.time.delay.is_number,
            texts[0], None, deltas=texts[1], shared=shared,
        )  # fmt: skip
        return Made(plan, Schema(columns), (stream,))

    def _plan(
        self,
        normal: exp.Query,
        body: st.ContinuousSelect,
        reading: _Reading,
        sample: Sample,
        names: Sequence[str],
    ) -> QueryPlan:
        emit = body.emit or (st.Emit.NEW if sample.kind is Sampling.REALTIME else st.Emit.ALL)
        time = reading.streams[0].time
        assert time is not None
        blank = QueryPlan(tuple(reading.windows), sample, emit.value, time.delay.is_number, "", None)
        feed = empty_feed(self._lake, blank)

        def types(sql: str, statics: Sequence[Static]) -> Mapping[str, str]:
            if statics:
                raise refused("a table is joined below a grouping, and may change", None, "")
            return self._answers.types(sql, feed)

        columns = [reading.columns[window_name(i)] for i in range(len(reading.windows))]
        texts = standing.plan_texts(
            normal, reading.windows, columns, sample, types, is_integer_time=time.delay.is_number
        )
        # What a row says of the instant is another thing at the next one.
        is_timeless = NOW not in texts.plain
        deltas = texts.deltas if emit is st.Emit.NEW and is_timeless else None
        # Joined with itself, a stream has one window, whose old rows are needed too.
        is_selection = deltas is not None and deltas.rows == 1 and reading.has_window == [False]
        if is_selection and sample.kind is Sampling.REALTIME:
            sample = Sample(Sampling.COMMIT)
        known = {n.lower(): n for n in names}
        tables = tuple(known[t.lower()] for t in texts.tables if t.lower() in known)
        is_split = texts.split is not None and deltas is None
        made = replace(
            blank, sample=sample, plain=texts.plain, whole=texts.whole, split=texts.split if is_split else None,
            parts=texts.parts if is_split else (),
            pairs=texts.pairs if is_split else (), deltas=deltas, tables=tables, reasons=texts.reasons,
        )  # fmt: skip
        return self._checked(_shared(made, normal, reading))

    def _checked(self, plan: QueryPlan) -> QueryPlan:
        """The plan without what Spark would refuse of it."""
        if plan.split is not None and (error := self._answers.complaint(plan, plan.split)) is not None:
            plan = replace(plan, split=None, parts=(), pairs=(), reasons=(*plan.reasons, error))
        if plan.split is not None:
            feed = empty_feed(self._lake, plan)
            made = (written_schema(self._answers.schema(opened(p.fragment, plan.pairs), feed)) for p in plan.parts)
            plan = replace(plan, schemas=tuple(made))
        if plan.whole is not None and (error := self._answers.complaint(plan, plan.whole)) is not None:
            plan = replace(plan, whole=None, reasons=(*plan.reasons, f"instants are answered one by one: {error}"))
        return plan

    def _schema(
        self, asked: st.Query, found: Sequence[Cut], known: Mapping[str, TableInfo], reader: Reader, text: str
    ) -> Schema:
        """The columns of an answer, as Spark's analysis has them; what it complains of is underlined."""
        edits = [(c.span, _bounded(c, known)) for c in found] + wording.lags(asked) + wording.moments(asked, known)
        plain, splice = wording.edited(asked, edits)
        tables = tuple(replace(r, window=None) for r in plain.tables)
        plain = replace(plain, window=None, tables=tables)
        empty = {
            t.name: no_rows(t, reader.snapshot())
            for t in known.values()
            if t.kind in (*STREAMING, ObjectKind.CONTINUOUS_VIEW, ObjectKind.CONTINUOUS_QUERY)
        }
        self._check_tables(asked, known)
        try:
            analysed = plain.text if edits else text
            bound = bind(plain, Overlay(reader, empty, is_blank=True), analysed, {})
            rows = execute.run(self._spark, bound, self._relations, {})
            columns = tuple(Column(wording.as_written(f.name), stored_type(f)) for f in rows.schema())
        except StatementError as error:
            if edits:
                error.span, error.text = wording.back(error.span, asked, splice), text
                error.message = wording.as_written(error.message)
            raise
        _check_unique(columns)
        return Schema(columns)

    @staticmethod
    def _check_tables(asked: st.Query, known: Mapping[str, TableInfo]) -> None:
        for reference in asked.tables:
            found = known.get(reference.name.lower())
            if reference.window is not None and found is not None and found.kind not in STREAMING:
                raise _no_stream(found, reference.window.span.shifted(asked.offset))
            if reference.as_of is not None and found is not None and found.kind in STREAMING:
                raise StatementError(
                    Condition.NOT_SUPPORTED,
                    "a window reads no old versions",
                    hint="Leave the version out.",
                    span=reference.as_of.span.shifted(asked.offset),
                )


def _is_bare(body: st.ContinuousSelect) -> bool:
    """Whether nothing is said of windows and instants."""
    said, [table] = body.sample, body.query.tables
    has_sample = said is not None and (said.interval is not None or said.rows is not None)
    has_window = body.query.window is not None or table.window is not None or table.as_of is not None
    return not has_sample and not has_window and body.emit in (None, st.Emit.NEW) and not find_cuts(body.query)


def _types(stream: TableInfo) -> dict[str, pa.DataType]:
    return {c.name.lower(): c.type for c in stream.schema.columns}


def _names_columns_alone(tree: exp.Query, stream: TableInfo) -> bool:
    """Whether every name is that of a column: where it may be that of a result, Spark has to be asked."""
    types = _types(stream)
    return all(c.is_star or c.name.lower() in types for c in tree.find_all(exp.Column))


def _columns_of(tree: exp.Query, stream: TableInfo) -> tuple[Column, ...] | None:
    """The columns of a plain selection, under the names that Spark would give; None if two are the same."""
    types, found = _types(stream), []
    for node in tree.unnest().expressions:
        if node.is_star:
            found += [Column(c.name, c.type) for c in stream.schema.columns]
        else:
            found.append(Column(node.alias_or_name, types[node.unalias().name.lower()]))
    is_unique = len({c.name.lower() for c in found}) == len(found)
    return tuple(found) if is_unique else None


def _shared(plan: QueryPlan, normal: exp.Query, reading: _Reading) -> QueryPlan:
    """The plan with what others can share of it, or with the reason why they cannot."""
    if plan.deltas is None or plan.tables:
        return replace(plan, alone="tables are read in it" if plan.deltas is not None else "")
    try:
        return replace(plan, shared=shared_of(normal, [_types(s) for s in reading.streams]))
    except UnsharedError as error:
        return replace(plan, alone=str(error))


def _located(check: Callable[[], object], offset: int) -> None:
    try:
        check()
    except StatementError as error:
        error.span = error.span and error.span.shifted(offset)
        raise


def _check_unique(columns: Sequence[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise StatementError(
                Condition.DUPLICATE_COLUMN,
                f"two columns of the answer are called {column.name!r}",
                hint="Give one of them another name, with AS.",
            )
        seen.add(column.name.lower())


def _check_options(body: st.ContinuousSelect) -> None:
    if body.into is not None:
        raise StatementError(
            Condition.NOT_SUPPORTED_YET,
            "emitters are not built yet",
            detail="They come with part 7 of the road map.",
            hint="Leave INTO out, and SUBSCRIBE to the query.",
            span=body.into.span,
        )
    if body.options:
        raise StatementError(
            Condition.NOT_SUPPORTED_YET,
            f"the option {body.options[0][0]} is not built yet",
            hint="Late rows miss the instants already answered and enter later ones.",
        )


@contextmanager
def _refusals(asked: st.Query, splice: Splice) -> Iterator[None]:
    """What the rewriting of views refuses, said of a continuous query."""
    try:
        yield
    except StatementError as error:
        if error.condition is Condition.UNSUPPORTED_VIEW:
            error.condition = Condition.QUERY_REFUSED
            error.message = f"this continuous query cannot be answered: {error.message}"
            error.span = wording.back(error.span, asked, splice)
        raise


def _tree(asked: st.Query) -> exp.Query:
    if not isinstance(asked.tree, exp.Query):
        raise refused("it is written in a way that cannot be taken apart", None, "Write it with SELECT.")
    return asked.tree


def _named(number: int, cut: Cut) -> str:
    alias = "" if cut.has_alias else f" AS {quote(cut.stream.text)}"
    return CUT_NAME.format(number) + alias


def _bounded(cut: Cut, known: Mapping[str, TableInfo]) -> str:
    """The stream with the columns that its windows have, for Spark's analysis."""
    stream = find_named(cut.stream, known)
    assert stream.time is not None
    time = quote(stream.time.column)
    if stream.time.delay.is_number:
        time = f"CAST({time} AS BIGINT)"
    alias = "" if cut.has_alias else f" AS {quote(stream.name)}"
    return f"(SELECT *, {time} AS window_start, {time} AS window_end FROM {quote(stream.name)}){alias}"


def _opener(known: Mapping[str, TableInfo]) -> Callable[[str], exp.Query | None]:
    def opened(name: str) -> exp.Query | None:
        found = known.get(name.lower())
        if found is None or found.kind is not ObjectKind.VIEW:
            return None
        statement = parse_one(found.definition or "")
        tree = statement.query.tree if isinstance(statement, st.Select) else None
        if not isinstance(tree, exp.Query):
            raise refused(f"the view {name!r} cannot be taken apart", None, "Write its query out in this one.")
        for node in tree.walk():
            # A place in the view's text is none in that of the query.
            node.meta.pop("start", None)
        return tree

    return opened


# Windows


def _no_stream(table: TableInfo, span: Span) -> StatementError:
    return StatementError(
        Condition.WRONG_KIND,
        f"{table.name!r} is a {table.kind.value}, and a window needs a stream or a streaming table",
        hint="Leave the window out: a table is read as it is at each instant.",
        span=span,
    )


def _window(said: st.Window | None, stream: TableInfo, offset: int) -> Window:
    """The window of a stream as the query says it; without one, all since the query was made."""
    assert stream.time is not None
    period = stream.period.amount if stream.period is not None else 0
    rest = {"period": period, "is_kept": stream.kind is ObjectKind.STREAMING_TABLE}
    if said is None:
        return Window(stream.id, stream.name, WindowKind.LANDMARK, **rest)  # type: ignore[arg-type]
    span = said.span.shifted(offset)
    if said.length is not None:
        check_kind(stream, said.length.is_number, span)
    keys = tuple(_key(stream, name, span) for name in said.partition_by)
    kind = WindowKind(said.kind.value)
    length = said.length.amount if said.length is not None else 0
    return Window(stream.id, stream.name, kind, length, said.rows or 0, keys, **rest)  # type: ignore[arg-type]


def check_kind(stream: TableInfo, is_number: bool, span: Span | None) -> None:
    """Refuse an interval that is not of the kind of the stream's time."""
    assert stream.time is not None
    if is_number != stream.time.delay.is_number:
        form = "a plain number, INTERVAL 60" if stream.time.delay.is_number else "an interval, INTERVAL '1' MINUTE"
        raise StatementError(
            Condition.INVALID_INTERVAL,
            f"the interval and the time of {stream.name!r} are of different kinds",
            hint=f"Give {form}.",
            span=span,
        )


def _key(stream: TableInfo, name: str, span: Span) -> str:
    column = stream.schema.get(name)
    if column is None:
        raise StatementError(
            Condition.UNKNOWN_COLUMN,
            f"no column {name!r} in {stream.name!r}",
            hint=f"It has {', '.join(stream.schema.names[:12])}.",
            span=span,
        )
    if is_nested(column.type):
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"a window cannot be partitioned by {name!r} of type {column.sql_type}",
            hint="Partition by columns of scalar types.",
            span=span,
        )
    return column.name


def _cut_window(cut: Cut, stream: TableInfo) -> Window:
    period = stream.period.amount if stream.period is not None else 0
    kept = stream.kind is ObjectKind.STREAMING_TABLE
    kind = WindowKind.SESSION if cut.function == "SESSION" else WindowKind.CUT
    keys = tuple(_key(stream, k.text, k.span) for k in cut.keys)
    return Window(stream.id, stream.name, kind, cut.length.amount, 0, keys, period, kept)


# When a query answers


def _sample(body: st.ContinuousSelect, reading: _Reading) -> Sample:
    _check_one_time_type(reading)
    said, first = body.sample, reading.streams[0]
    if reading.cuts:
        return _ends(body, reading)
    if said is None or (said.interval is None and said.rows is None):
        return Sample(Sampling.REALTIME)
    if said.interval is not None:
        check_kind(first, said.interval.is_number, None)
        return Sample(Sampling.INTERVAL, said.interval.amount)
    if len({s.id for s in reading.streams}) > 1:
        raise StatementError(
            Condition.QUERY_REFUSED,
            "SAMPLE ROWS counts the rows of one stream, and this query reads several",
            hint="Use SAMPLE INTERVAL or SAMPLE REALTIME.",
        )
    assert said.rows is not None
    return Sample(Sampling.ROWS, said.rows)


def _ends(body: st.ContinuousSelect, reading: _Reading) -> Sample:
    """TUMBLE, HOP and SESSION say themselves when they answer."""
    if body.sample is not None:
        raise StatementError(
            Condition.QUERY_REFUSED,
            f"{reading.cuts[0].function} takes no SAMPLE: each window answers when it ends",
            hint="Leave SAMPLE out, or use a window in brackets.",
        )
    shapes = {(c.function == "SESSION", c.step.amount, c.length.amount) for c in reading.cuts}
    if len(shapes) > 1:
        raise StatementError(
            Condition.QUERY_REFUSED,
            "the windows of one query end together, and these do not",
            hint="Use the same step and length for all of them.",
        )
    is_session, step, length = shapes.pop()
    if is_session:
        if len(reading.windows) > 1:
            raise StatementError(
                Condition.NOT_SUPPORTED,
                "a query over sessions reads one stream",
                hint="Keep the sessions in a STREAMING VIEW, and join that.",
            )
        return Sample(Sampling.SESSION)
    return Sample(Sampling.ENDS, step, length % step)


def _check_one_time_type(reading: _Reading) -> None:
    kinds = {s.time.delay.is_number for s in reading.streams if s.time is not None}
    if len(kinds) > 1:
        raise StatementError(
            Condition.QUERY_REFUSED,
            "the streams of this query have times of different types",
            detail=", ".join(
                f"{s.name}: {'integer' if s.time and s.time.delay.is_number else 'TIMESTAMP'}"
                for s in reading.streams
            ),
            hint="Use streams whose times are of one type in one query.",
        )
