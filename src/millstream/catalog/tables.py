"""Tables and streams in the catalogue: reading all definitions, creating, altering and dropping one.

What DuckLake has no column for (a stream's time column, VARCHAR's length) is kept in the table's tags;
DuckDB takes no tags of columns but comments.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import indexes, inlined, stats, streams, types
from millstream.catalog.records import ColumnStats, StreamTime, TableInfo
from millstream.schema import Column, Duration, ObjectKind, Schema

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection

KIND, TIME_COLUMN, DELAY, PERIOD, COMMENT, LENGTH = (
    "millstream.kind",
    "millstream.time_column",
    "millstream.watermark_delay",
    "millstream.period",
    "comment",
    "millstream.length",
)
ARRIVAL = "arrival"
LIVE = "begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)"

Tags = dict[str, str]


def load(connection: Connection, snapshot_id: int) -> dict[str, TableInfo]:
    """Every table and stream of the snapshot, by lower-case name."""
    at = (snapshot_id, snapshot_id)
    tags: dict[int, Tags] = defaultdict(dict)
    for object_id, key, value in connection.execute(
        f"SELECT object_id, key, value FROM ducklake_tag WHERE {LIVE}", at
    ):
        tags[object_id][key] = value
    column_tags: dict[tuple[int, int], Tags] = defaultdict(dict)
    for table_id, column_id, key, value in connection.execute(
        f"SELECT table_id, column_id, key, value FROM ducklake_column_tag WHERE {LIVE}", at
    ):
        column_tags[table_id, column_id][key] = value
    columns: dict[int, list[tuple[types.FlatColumn, bool]]] = defaultdict(list)
    for table_id, column_id, parent, name, type_, nulls_allowed in connection.execute(
        "SELECT table_id, column_id, parent_column, column_name, column_type, nulls_allowed"
        f" FROM ducklake_column WHERE {LIVE} ORDER BY table_id, column_order",
        at,
    ):
        columns[table_id].append((types.FlatColumn(column_id, parent, name, type_), bool(nulls_allowed)))
    versions = dict(
        connection.execute(
            "SELECT table_id, max(schema_version) FROM ducklake_schema_versions"
            " WHERE begin_snapshot <= ? GROUP BY table_id",
            (snapshot_id,),
        ).fetchall()
    )
    rows = connection.execute(f"SELECT table_id, table_name, path FROM ducklake_table WHERE {LIVE}", at)
    return {
        name.lower(): _table(
            table_id, name, path, versions.get(table_id, 0), columns[table_id], tags[table_id], column_tags
        )
        for table_id, name, path in rows
    }


def _table(
    table_id: int,
    name: str,
    path: str,
    version: int,
    flat: list[tuple[types.FlatColumn, bool]],
    tags: Tags,
    column_tags: dict[tuple[int, int], Tags],
) -> TableInfo:
    parts = types.by_parent([c for c, _ in flat])
    top = [(c, nullable) for c, nullable in flat if c.parent is None]
    columns = tuple(
        _column(
            c,
            types.unflatten(c, parts),
            nullable,
            tags.get(f"{LENGTH}.{c.column_id}"),
            column_tags[table_id, c.column_id].get(COMMENT),
        )
        for c, nullable in top
    )
    return TableInfo(
        id=table_id,
        name=name,
        kind=ObjectKind(tags.get(KIND, ObjectKind.TABLE)),
        schema=Schema(columns),
        column_ids=tuple(c.column_id for c, _ in top),
        path=path,
        schema_version=version,
        time=_stream_time(tags),
        comment=tags.get(COMMENT),
        period=_read_duration(tags[PERIOD]) if PERIOD in tags else None,
    )


def _column(
    flat: types.FlatColumn, type_: pa.DataType, nullable: bool, length: str | None, comment: str | None
) -> Column:
    return Column(
        flat.name,
        type_,
        nullable,
        max_length=int(length.split()[-1]) if length else None,
        padded=bool(length and length.startswith("CHAR")),
        comment=comment,
    )


def _stream_time(tags: Tags) -> StreamTime | None:
    if TIME_COLUMN not in tags:
        return None
    is_arrival = tags.get("millstream.time") == ARRIVAL
    return StreamTime(tags[TIME_COLUMN], _read_duration(tags[DELAY]), is_arrival)


def _read_duration(text: str) -> Duration:
    amount, unit = text.split()
    return Duration(int(amount), unit == "number")


def _duration_text(duration: Duration) -> str:
    return f"{duration.amount} {'number' if duration.is_number else 'us'}"


def provisional(
    name: str,
    kind: ObjectKind,
    schema: Schema,
    time: StreamTime | None = None,
    comment: str | None = None,
    period: Duration | None = None,
) -> TableInfo:
    """A table that is not in the catalogue yet: its files can be written before it is created."""
    folder = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)[:40]
    ids, next_id = [], 1
    for column in schema.columns:
        ids.append(next_id)
        next_id += len(types.flatten(column.name, column.type, next_id))
    path = f"{folder}-{uuid.uuid4().hex[:12]}/"
    return TableInfo(-1, name, kind, schema, tuple(ids), path, 0, time, comment, period)


def create(commit: Commit, wanted: TableInfo) -> TableInfo:
    """Write a new table's definition; the caller has checked that the name is free."""
    table = replace(wanted, id=commit.new_catalog_id(), schema_version=commit.schema_changed())
    commit.connection.execute(
        "INSERT INTO ducklake_table VALUES (?, ?, ?, NULL, 0, ?, ?, 1)",
        (table.id, str(uuid.uuid4()), commit.snapshot_id, table.name, table.path),
    )
    _create_columns(commit, table, 0)
    _create_version(commit, table)
    _create_tags(commit, table, _tags(table, 0))
    inlined.create(commit, table)
    if table.kind in (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE):
        streams.create(commit, table.id)
    escaped = table.name.replace('"', '""')
    commit.changed(f'created_table:"main"."{escaped}"')
    return table


def _create_version(commit: Commit, table: TableInfo) -> None:
    commit.connection.execute(
        "INSERT INTO ducklake_schema_versions VALUES (?, ?, ?)",
        (commit.snapshot_id, table.schema_version, table.id),
    )


def _create_columns(commit: Commit, table: TableInfo, first: int) -> None:
    """Enter the columns from place `first` on."""
    pairs = list(zip(table.column_ids, table.schema.columns, strict=True))[first:]
    commit.connection.executemany(
        "INSERT INTO ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name,"
        " column_type, nulls_allowed, parent_column, default_value, default_value_type, default_value_dialect)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'NULL', 'literal', 'duckdb')",
        [
            (
                flat.column_id,
                commit.snapshot_id,
                table.id,
                flat.column_id,
                flat.name,
                flat.type,
                int(column.nullable or flat.parent is not None),
                flat.parent,
            )
            for first_id, column in pairs
            for flat in types.flatten(column.name, column.type, first_id)
        ],
    )
    commit.connection.executemany(
        "INSERT INTO ducklake_column_tag (table_id, column_id, begin_snapshot, key, value) VALUES (?, ?, ?, ?, ?)",
        [
            (table.id, column_id, commit.snapshot_id, COMMENT, column.comment)
            for column_id, column in pairs
            if column.comment
        ],
    )


def _tags(table: TableInfo, first: int) -> Tags:
    """What DuckLake has no column for; of the columns those from place `first` on."""
    tags: Tags = {}
    for column_id, column in list(zip(table.column_ids, table.schema.columns, strict=True))[first:]:
        if column.max_length is not None:
            kind = "CHAR" if column.padded else "VARCHAR"
            tags[f"{LENGTH}.{column_id}"] = f"{kind} {column.max_length}"
    if first:
        return tags
    tags[KIND] = table.kind.value
    if table.time is not None:
        tags[TIME_COLUMN] = table.time.column
        tags[DELAY] = _duration_text(table.time.delay)
        if table.time.is_arrival:
            tags["millstream.time"] = ARRIVAL
    if table.period is not None:
        tags[PERIOD] = _duration_text(table.period)
    if table.comment:
        tags[COMMENT] = table.comment
    return tags


def _create_tags(commit: Commit, table: TableInfo, tags: Tags) -> None:
    commit.connection.executemany(
        "INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value) VALUES (?, ?, ?, ?)",
        [(table.id, commit.snapshot_id, key, value) for key, value in tags.items()],
    )


def add_columns(commit: Commit, table: TableInfo, columns: tuple[Column, ...]) -> TableInfo:
    """Append columns, null in the rows there are; small inserts go to a new side table from here on.

    The caller has seen to it that no rows are inlined if the new columns cannot be.
    """
    (last,) = commit.connection.execute(
        "SELECT max(column_id) FROM ducklake_column WHERE table_id = ?", (table.id,)
    ).fetchone()
    ids, next_id = [], last + 1
    for column in columns:
        ids.append(next_id)
        next_id += len(types.flatten(column.name, column.type, next_id))
    wider = replace(
        table,
        schema=Schema((*table.schema.columns, *columns)),
        column_ids=(*table.column_ids, *ids),
        schema_version=commit.schema_changed(),
    )
    first = len(table.column_ids)
    _create_columns(commit, wider, first)
    _create_version(commit, wider)
    _create_tags(commit, wider, _tags(wider, first))
    inlined.create(commit, wider)
    inlined.move(commit, table, wider)
    known = commit.stats_of(table.id, stats.column_types(table))
    if known.next_row_id:
        empty = {i: ColumnStats(nulls=1) for i in ids if i in stats.column_types(wider)}
        commit.table_stats[table.id] = known.plus(0, 0, 0, empty)
    commit.changed(f"altered_table:{table.id}")
    return wider


def set_period(commit: Commit, table: TableInfo, period: Duration | None) -> None:
    """Give a streaming table another historical period."""
    commit.schema_changed()
    commit.connection.execute(
        "UPDATE ducklake_tag SET end_snapshot = ? WHERE object_id = ? AND key = ? AND end_snapshot IS NULL",
        (commit.snapshot_id, table.id, PERIOD),
    )
    if period is not None:
        _create_tags(commit, table, {PERIOD: _duration_text(period)})
    commit.changed(f"altered_table:{table.id}")


def drop(commit: Commit, table: TableInfo) -> None:
    """End the table in this snapshot; its files stay until no snapshot needs them."""
    commit.schema_changed()
    for target, key in (
        ("ducklake_table", "table_id"),
        ("ducklake_column", "table_id"),
        ("ducklake_column_tag", "table_id"),
        ("ducklake_tag", "object_id"),
        ("ducklake_data_file", "table_id"),
    ):
        commit.connection.execute(
            f"UPDATE {target} SET end_snapshot = ? WHERE {key} = ? AND end_snapshot IS NULL",
            (commit.snapshot_id, table.id),
        )
    streams.drop(commit, table.id)
    indexes.drop_all(commit, table.id)
    commit.table_stats.pop(table.id, None)
    commit.changed(f"dropped_table:{table.id}")
