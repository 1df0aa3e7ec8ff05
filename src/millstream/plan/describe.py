"""SHOW and DESCRIBE: the catalogue as rows. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.catalog import files, indexes, snapshots, streams
from millstream.catalog.records import StreamState
from millstream.errors import Condition, StatementError
from millstream.plan import define
from millstream.plan.bind import Source, find_named
from millstream.schema import TIMESTAMP, Duration, ObjectKind, normal_type, quote_if_needed, sql_type
from millstream.sql.statements import Show, ShowWhat
from millstream.storage import index as value_index
from millstream.storage import period

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millstream.catalog.records import IndexInfo, TableInfo
    from millstream.storage.lake import Lake

    Tables = Mapping[str, TableInfo]
    Jobs = Sequence[tuple[str, int, int, str | None]]
    Settings = Sequence[tuple[str, str]]

TEXT, NUMBER = pa.string(), pa.int64()
COLUMN_NAMES = {"column": TEXT, "type": TEXT, "nullable": pa.bool_(), "comment": TEXT}
EMPTY_YET = (
    ShowWhat.RECEPTORS,
    ShowWhat.EMITTERS,
)


NO_ROWS = (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW, ObjectKind.CONTINUOUS_QUERY)
"""What has no files of its own."""


def rows(names: Mapping[str, pa.DataType], values: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*values, strict=True)) or [()] * len(names)
    arrays = [pa.array(c, t) for c, t in zip(columns, names.values(), strict=True)]
    return pa.table(arrays, names=list(names))


def like(statement: Show, found: pa.Table) -> pa.Table:
    """The rows whose names match the LIKE of a SHOW statement."""
    if statement.like is None:
        return found
    matches = pa.compute.match_like(found.column(0), statement.like, ignore_case=True)
    return found.filter(matches)


def show(statement: Show, lake: Lake, source: Source, jobs: Jobs, settings: Settings) -> pa.Table:
    """The rows of a SHOW of what the catalogue alone knows."""
    what = statement.what
    tables = source.tables(source.snapshot())
    if what in EMPTY_YET:
        return rows({"name": TEXT}, [])
    if what is ShowWhat.TABLES:
        return _tables(source, tables)
    if what is ShowWhat.STREAMS:
        return _streams(lake, tables)
    if what is ShowWhat.STREAMING_TABLES:
        return _streaming_tables(lake, source, tables)
    if what is ShowWhat.INDEXES:
        return _indexes(lake, tables, None if statement.of is None else find_named(statement.of, tables))
    if what is ShowWhat.SNAPSHOTS:
        return _snapshots(lake)
    if what is ShowWhat.SETTINGS:
        return rows({"name": TEXT, "value": TEXT}, settings)
    if what is ShowWhat.JOBS:
        return rows({"job": TEXT, "waiting": NUMBER, "runs": NUMBER, "failure": TEXT}, jobs)
    of: dict[ShowWhat, Callable[[TableInfo], pa.Table]] = {
        ShowWhat.COLUMNS: table,
        ShowWhat.FILES: lambda found: _files(found, source),
    }
    if what not in of or statement.of is None:
        raise StatementError(
            Condition.NOT_SUPPORTED_YET,
            f"SHOW {what.value} is not built yet",
            hint="SHOW TABLES, STREAMS, STREAMING TABLES, INDEXES, COLUMNS, FILES, JOBS and SETTINGS work today.",
        )
    found = find_named(statement.of, tables)
    if found.kind in NO_ROWS:
        raise StatementError(
            Condition.WRONG_KIND,
            f"{found.name!r} is a {found.kind.value} and has no {what.value.lower()} of its own",
            hint=f"DESCRIBE {found.name} shows the columns of its query.",
            span=statement.of.span,
        )
    return of[what](found)


def _tables(source: Source, tables: Tables) -> pa.Table:
    found = sorted((t for t in tables.values() if t.kind is ObjectKind.TABLE), key=lambda t: t.name.lower())
    return rows(
        {"name": TEXT, "kind": TEXT, "rows": NUMBER, "comment": TEXT},
        [(t.name, t.kind.value, source.row_count(t), t.comment) for t in found],
    )


def queries(listed: Sequence[tuple[Any, ...]]) -> pa.Table:
    """SHOW QUERIES: how continuous queries and those behind streaming views are doing."""
    columns = {
        "name": TEXT, "kind": TEXT, "status": TEXT, "streams": TEXT, "rows_behind": NUMBER, "last_answer": TEXT,
        "deliveries": NUMBER, "state_bytes": NUMBER, "query": TEXT,
    }  # fmt: skip
    return rows(columns, sorted(listed, key=lambda q: str(q[0]).lower()))


def eddy(operators: Sequence[tuple[Any, ...]]) -> pa.Table:
    """SHOW EDDY: the operators that queries share, in the order in which the last basket went through them."""
    columns = {
        "stream": TEXT, "operator": TEXT, "policy": TEXT, "place": NUMBER, "terms": NUMBER,
        "tickets": pa.float64(), "selectivity": pa.float64(),
    }  # fmt: skip
    return rows(columns, operators)


def joins(listed: Sequence[tuple[Any, ...]]) -> pa.Table:
    """SHOW JOINS: the queries of joins that are scheduled, how long their results take, and what that takes."""
    columns = {
        "join": TEXT, "policy": TEXT, "query": TEXT, "window": TEXT, "results": NUMBER,
        "average": pa.float64(), "p95": pa.float64(), "longest": pa.float64(),
        "buffer_rows": NUMBER, "buffer_bytes": NUMBER, "extra_bytes": NUMBER, "most_extra_bytes": NUMBER,
    }  # fmt: skip
    return rows(columns, listed)


def streaming_views(lake: Lake, source: Source, listed: Sequence[tuple[Any, ...]]) -> pa.Table:
    """SHOW STREAMING VIEWS: how their queries are doing, and what their tables keep."""
    tables = source.tables(source.snapshot())
    views = [q for q in listed if q[1] == ObjectKind.STREAMING_VIEW.value]
    columns = {
        "name": TEXT, "status": TEXT, "streams": TEXT, "rows_behind": NUMBER, "last_answer": TEXT,
        "watermark": TEXT, "rows": NUMBER, "oldest": TEXT, "range": TEXT, "query": TEXT,
    }  # fmt: skip
    return rows(columns, [
        (*view[:1], *view[2:6], *_content(lake, source, tables[view[0].lower()]), view[-1])
        for view in sorted(views, key=lambda v: v[0].lower())
    ])  # fmt: skip


def _content(lake: Lake, source: Source, table: TableInfo) -> tuple[Any, ...]:
    """How far a streaming table is, and what it holds."""
    state = lake.catalog.now.streams.get(table.id, StreamState())
    mark = period.stream_time(table, state, lake.clock.now())
    oldest = define.time_text(table, source.horizon(table))
    return define.time_text(table, mark), source.row_count(table), oldest, range_text(table)


def deliveries(found: Sequence[Any], schema: pa.Schema, time: pa.DataType) -> pa.Table:
    """The rows of deliveries, each with its sequence number and instant; `time` is the type of instants."""
    none = _placed(schema.empty_table(), 0, None, time)
    return pa.concat_tables(
        [none, *(_placed(d.to_arrow(), d.sequence, d.instant, time) for d in found)], promote_options="permissive"
    )


def _placed(data: pa.Table, sequence: int, instant: Any, time: pa.DataType) -> pa.Table:
    """The rows of one delivery behind its place."""
    for name, value in (("instant", pa.scalar(instant, time)), ("sequence", pa.scalar(sequence, NUMBER))):
        called = name if name not in data.column_names else f"_{name}"
        data = data.add_column(0, called, pa.repeat(value, data.num_rows))
    return data


def views(tables: Tables, kept: Sequence[tuple[Any, ...]]) -> pa.Table:
    """SHOW VIEWS: plain ones with their queries, continuous ones with how they are doing."""
    plain = [
        (t.name, t.kind.value, None, None, None, None, None, None, t.definition)
        for t in tables.values()
        if t.kind is ObjectKind.VIEW
    ]
    continuous = [(v[0], ObjectKind.CONTINUOUS_VIEW.value, *v[1:]) for v in kept]
    columns = {
        "name": TEXT,
        "kind": TEXT,
        "status": TEXT,
        "streams": TEXT,
        "lag_rows": NUMBER,
        "state_rows": NUMBER,
        "state_bytes": NUMBER,
        "refreshed_at": TEXT,
        "query": TEXT,
    }
    return rows(columns, sorted([*plain, *continuous], key=lambda v: v[0].lower()))


def continuous_view(view: TableInfo, details: Sequence[tuple[str, str]], extended: bool) -> pa.Table:
    """DESCRIBE of a continuous view: its columns, what it pins and reads, and, if asked, how it is doing."""
    said = details if extended else [d for d in details if d[0] in ("pinned at creation", "read as they are")]
    columns = [(c.name, c.sql_type) for c in view.schema.columns]
    return rows({"name": TEXT, "type": TEXT}, [*columns, *said])


def _streams(lake: Lake, tables: Tables) -> pa.Table:
    found = sorted((t for t in tables.values() if t.kind is ObjectKind.STREAM), key=lambda t: t.name.lower())
    return rows(
        {
            "name": TEXT,
            "time": TEXT,
            "watermark": TEXT,
            "received": NUMBER,
            "late": NUMBER,
            "held": NUMBER,
            "consumers": NUMBER,
            "comment": TEXT,
        },
        [_stream(lake, t) for t in found],
    )


def _stream(lake: Lake, stream: TableInfo) -> tuple[Any, ...]:
    assert stream.time is not None
    with lake.catalog.read() as connection:
        state = streams.load(connection, stream.id)
        consumers = streams.consumers(connection, stream.id)
    held = lake.catalog.table_stats(stream).next_row_id - state.dropped_to
    return (
        stream.name,
        stream.time.column,
        define.time_text(stream, period.stream_time(stream, state, lake.clock.now())),
        state.received_rows,
        state.late_rows,
        held,
        len(consumers),
        stream.comment,
    )


def _streaming_tables(lake: Lake, source: Source, tables: Tables) -> pa.Table:
    kind = ObjectKind.STREAMING_TABLE
    found = sorted((t for t in tables.values() if t.kind is kind), key=lambda t: t.name.lower())
    return rows(
        {
            "name": TEXT,
            "time": TEXT,
            "watermark": TEXT,
            "received": NUMBER,
            "late": NUMBER,
            "refused": NUMBER,
            "rows": NUMBER,
            "oldest": TEXT,
            "range": TEXT,
            "comment": TEXT,
        },
        [_streaming_table(lake, source, t) for t in found],
    )


def _streaming_table(lake: Lake, source: Source, table: TableInfo) -> tuple[Any, ...]:
    assert table.time is not None
    state = lake.catalog.now.streams.get(table.id, StreamState())
    watermark, *kept = _content(lake, source, table)
    received = state.received_rows, state.late_rows, state.refused_rows
    return table.name, table.time.column, watermark, *received, *kept, table.comment


def range_text(table: TableInfo) -> str:
    return "UNBOUNDED" if table.period is None else table.period.sql()


def _indexes(lake: Lake, tables: Tables, of: TableInfo | None) -> pa.Table:
    names = {t.id: t for t in tables.values()}
    found = sorted(lake.catalog.indexes().values(), key=lambda i: i.name.lower())
    shown = [i for i in found if i.table_id in names and (of is None or i.table_id == of.id)]
    return rows(
        {
            "name": TEXT,
            "table": TEXT,
            "column": TEXT,
            "method": TEXT,
            "state": TEXT,
            "built": NUMBER,
            "segments": NUMBER,
            "bytes": NUMBER,
        },
        [_index(lake, i, names[i.table_id]) for i in shown],
    )


def _index(lake: Lake, index: IndexInfo, table: TableInfo) -> tuple[Any, ...]:
    """`segments` counts those large enough to be indexed; others are read as they are."""
    with lake.catalog.read() as connection:
        done = indexes.built(connection, index.id)
        live = files.live(connection, table.id, lake.catalog.current.id)
    wanted = value_index.to_index(table, live)
    built = sum(f.id in done for f in wanted)
    size = sum(done.get(f.id, 0) for f in live)
    state = "ready" if built == len(wanted) else "building"
    column = table.column(index.column_id).name
    return index.name, table.name, column, index.method.value, state, built, len(wanted), size


def _snapshots(lake: Lake) -> pa.Table:
    with lake.catalog.read() as connection:
        found = snapshots.every(connection)
    return rows(
        {"version": NUMBER, "time": TIMESTAMP, "changes": TEXT}, [(s.id, s.time, s.changes) for s in found]
    )


def _files(found: TableInfo, source: Source) -> pa.Table:
    scan = source.scan(found, source.snapshot(), ())
    listed: list[tuple[Any, ...]] = [
        (f.path, f.rows, f.bytes, f.row_id_start if f.has_row_ids else None, f.begin_snapshot or None)
        for f in scan.files
    ]
    if scan.inlined is not None and scan.inlined_ids is not None:
        first = scan.inlined_ids[0].as_py()
        row_id = None if first < 0 else first
        listed.append(("(inlined in the catalogue)", scan.inlined.num_rows, 0, row_id, None))
    names = {"file": TEXT, "rows": NUMBER, "bytes": NUMBER, "first_row_id": NUMBER, "since_version": NUMBER}
    return rows(names, listed)


def create(statement: str) -> pa.Table:
    """SHOW CREATE."""
    return rows({"statement": TEXT}, [(statement,)])


def create_statement(found: TableInfo) -> str:
    """The SQL that makes the same table, stream or view."""
    if found.kind in (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW):
        return f"CREATE {found.kind.value.upper()} {quote_if_needed(found.name)} AS {found.definition}"
    arrival = found.time.column if found.time is not None and found.time.is_arrival else None
    columns = [
        f"  {quote_if_needed(c.name)} {c.sql_type}"
        + ("" if c.nullable else " NOT NULL")
        + (f" COMMENT {_quoted(c.comment)}" if c.comment else "")
        for c in found.schema.columns
        if c.name != arrival
    ]
    text = f"CREATE {found.kind.value.upper()} {quote_if_needed(found.name)} (\n" + ",\n".join(columns) + "\n)"
    if found.time is not None and not found.time.is_arrival:
        text += f" TIMESTAMP BY {quote_if_needed(found.time.column)}"
        if found.time.delay.amount:
            text += f" WATERMARK {found.time.delay.sql()}"
    if found.kind is ObjectKind.STREAMING_TABLE:
        text += f" RANGE {range_text(found)}"
    return text + (f" COMMENT {_quoted(found.comment)}" if found.comment else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def table(found: TableInfo) -> pa.Table:
    """The columns of a table or stream."""
    columns = found.schema.columns
    return rows(
        COLUMN_NAMES,
        [(c.name, c.sql_type, c.nullable, _role(found, c.name) or c.comment) for c in columns],
    )


def extended(found: TableInfo, source: Source, lake: Lake) -> pa.Table:
    """The columns, and below them what else is known."""
    known = [*_details(found, source), *_history(found, source, lake), ("comment", found.comment or "")]
    details = [("", "", None, ""), *((k, v, None, None) for k, v in known)]
    return pa.concat_tables([table(found), rows(COLUMN_NAMES, details)])


def _role(found: TableInfo, column: str) -> str | None:
    if found.time is None or found.time.column != column:
        return None
    if found.time.is_arrival:
        return "time of arrival"
    return f"time, watermark {found.time.delay.sql()}" if found.time.delay.amount else "time"


def _details(found: TableInfo, source: Source) -> list[tuple[str, str]]:
    scan = source.scan(found, source.snapshot(), ())
    return [
        ("kind", found.kind.value),
        ("rows", str(source.row_count(found))),
        ("files", str(len(scan.files))),
        ("bytes", str(sum(f.bytes for f in scan.files))),
        ("inlined rows", str(scan.inlined.num_rows if scan.inlined is not None else 0)),
    ]


def _history(found: TableInfo, source: Source, lake: Lake) -> list[tuple[str, str]]:
    """What a streaming table keeps, what became of the rows that came, and the indices."""
    names = sorted(i.name for i in lake.catalog.indexes().values() if i.table_id == found.id)
    shown = [*_period(found, source), *_received(found, lake)]
    return [*shown, ("indices", ", ".join(names))] if names else shown


def _period(found: TableInfo, source: Source) -> list[tuple[str, str]]:
    if found.kind is not ObjectKind.STREAMING_TABLE or found.time is None:
        return []
    size = period.width(found)
    return [
        ("range", range_text(found)),
        ("compartment", "" if size is None else Duration(size, found.time.delay.is_number).sql()),
        ("oldest visible", define.time_text(found, source.horizon(found)) or ""),
    ]


def _received(found: TableInfo, lake: Lake) -> list[tuple[str, str]]:
    if found.time is None:
        return []
    state = lake.catalog.now.streams.get(found.id, StreamState())
    return [
        ("watermark", define.time_text(found, period.stream_time(found, state, lake.clock.now())) or ""),
        ("received rows", str(state.received_rows)),
        ("late rows", str(state.late_rows)),
        ("refused rows", str(state.refused_rows)),
    ]


def columns_of(schema: pa.Schema) -> pa.Table:
    """DESCRIBE QUERY: the columns that a query gives."""
    return rows({"column": TEXT, "type": TEXT}, [(f.name, _type_text(f.type)) for f in schema])


def _type_text(type_: pa.DataType) -> str:
    try:
        return sql_type(normal_type(type_))
    except ValueError:
        return str(type_).upper()
