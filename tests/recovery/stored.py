"""What a database holds, read without Spark, and whether its catalogue tells the truth about it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.catalog import files, indexes, inlined, snapshots, stats
from millstream.catalog.records import ColumnStats
from millstream.schema import ObjectKind
from millstream.storage import segment, statistics, watermark
from tests import duck

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.catalog.records import DataFile, IndexCopy, IndexInfo, Snapshot, TableInfo
    from millstream.storage.lake import Lake


def table_of(lake: Lake, name: str) -> TableInfo:
    return lake.catalog.tables()[name.lower()]


def contents(lake: Lake, name: str, snapshot: Snapshot | None = None) -> tuple[list[int], pa.Table]:
    """Row ids and rows, files first, in the order in which they are stored."""
    snapshot = snapshot or lake.catalog.current
    table = lake.catalog.tables(snapshot)[name.lower()]
    found = lake.scan(table, snapshot)
    ids: list[int] = []
    parts: list[pa.Table] = [table.schema.arrow.empty_table()]
    for file in found.files:
        data, row_ids = segment.read(lake.folder(table), table, file)
        parts.append(data)
        ids += row_ids.to_pylist()
    if found.inlined is not None and found.inlined_ids is not None:
        parts.append(found.inlined)
        ids += found.inlined_ids.to_pylist()
    return ids, pa.concat_tables(parts)


def rows(lake: Lake, name: str, snapshot: Snapshot | None = None) -> duck.Rows:
    """Row id → canonical values."""
    return duck.by_id(*contents(lake, name, snapshot))


def files_on_disk(root: Path) -> set[str]:
    return {p.relative_to(root / "data").as_posix() for p in (root / "data").rglob("*") if p.is_file()}


def copies_on_disk(root: Path) -> set[str]:
    """The files of the value indices, relative to their directory."""
    return {p.relative_to(root / "index").as_posix() for p in (root / "index").rglob("*") if p.is_file()}


def known_copies(lake: Lake) -> set[str]:
    with lake.catalog.read() as connection:
        return indexes.every_copy(connection)


def copies(lake: Lake, index: str) -> dict[int, IndexCopy]:
    """The copies of an index by data file."""
    found = lake.catalog.indexes()[index.lower()]
    type_ = _owner(lake, found).column(found.column_id).type
    with lake.catalog.read() as connection:
        return indexes.copies(connection, found, type_, indexes.built(connection, found.id))


def _owner(lake: Lake, index: IndexInfo) -> TableInfo:
    return next(t for t in lake.catalog.tables().values() if t.id == index.table_id)


def known_files(lake: Lake) -> set[str]:
    with lake.catalog.read() as connection:
        return snapshots.every_file(connection)


def live_files(lake: Lake, name: str) -> list[DataFile]:
    with lake.catalog.read() as connection:
        return files.live(connection, table_of(lake, name).id, lake.catalog.current.id)


def inlined_count(lake: Lake, name: str) -> int:
    with lake.catalog.read() as connection:
        return inlined.count(connection, table_of(lake, name), lake.catalog.current.id)


def check(lake: Lake) -> None:
    """Assert that the catalogue is sound and that all it says about files and rows is so."""
    with sqlite3.connect(lake.root / "catalog.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert known_files(lake) == files_on_disk(lake.root)
    assert known_copies(lake) == copies_on_disk(lake.root)
    for table in lake.catalog.tables().values():
        _check_files(lake, table)
        _check_statistics(lake, table)
        _check_copies(lake, table)


def _check_files(lake: Lake, table: TableInfo) -> None:
    with lake.catalog.read() as connection:
        by_file = stats.of_files(connection, table, lake.catalog.current.id)
    for file in live_files(lake, table.name):
        path = lake.folder(table) / file.path
        assert path.stat().st_size == file.bytes, f"{table.name}: {file.path} has another size"
        assert pq.read_metadata(path).num_rows == file.rows, f"{table.name}: {file.path} has another row count"
        data, _ = segment.read(lake.folder(table), table, file)
        known, actual = by_file.get(file.id, {}), statistics.of_table(table, data)
        assert known == {i: s for i, s in actual.items() if i in known}, f"{table.name}: {file.path}"
        added = [s for i, s in actual.items() if i not in known]
        assert all(s.values == 0 for s in added), f"{table.name}: {file.path} has values that are not recorded"
        if table.kind is ObjectKind.STREAMING_TABLE and table.time is not None:
            times = watermark.times_of(data.column(table.time.column))
            assert (file.low, file.high) == (times.min(), times.max()), f"{table.name}: {file.path}"
        else:
            assert (file.low, file.high) == (None, None)


def _check_copies(lake: Lake, table: TableInfo) -> None:
    """Each copy has exactly the rows of its file, sorted, and its row groups are what the catalogue says."""
    indices = [i for i in lake.catalog.indexes().values() if i.table_id == table.id]
    every = {index.id: copies(lake, index.name) for index in indices}
    for file in live_files(lake, table.name) if indices else []:
        data, _ = segment.read(lake.folder(table), table, file)
        expected = _multiset(data)
        for index in indices:
            copy = every[index.id].pop(file.id, None)
            if copy is not None:
                found = segment.completed(table.schema.arrow, _check_copy(lake, table, index, copy))
                assert _multiset(found) == expected, f"{index.name}: {copy.path} has other rows"
    for index in indices:
        for copy in every[index.id].values():
            _check_copy(lake, table, index, copy)


def _check_copy(lake: Lake, table: TableInfo, index: IndexInfo, copy: IndexCopy) -> pa.Table:
    path = lake.indexes / copy.path
    assert path.stat().st_size == copy.bytes
    with pq.ParquetFile(path) as parquet:
        footer, data = parquet.metadata, parquet.read()
    groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    assert groups == [g.rows for g in copy.groups], f"{index.name}: {copy.path} has other row groups"
    column = table.column(index.column_id)
    values, start = data.column(column.name), 0
    for group in copy.groups:
        known = statistics.of_column(column, values.slice(start, group.rows))
        assert known == group.stats, f"{index.name}: {copy.path} at row {start}"
        start += group.rows
    present = [g.stats for g in copy.groups if g.stats.values]
    assert all(a.high <= b.low for a, b in pairwise(present)), f"{index.name}: {copy.path} is not in order"
    return data


def _multiset(data: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(duck.by_id(list(range(data.num_rows)), data).values())


def _check_statistics(lake: Lake, table: TableInfo) -> None:
    ids, data = contents(lake, table.name)
    with lake.catalog.read() as connection:
        known = stats.load(connection, table.id, stats.column_types(table))
    assert len(set(ids)) == len(ids), f"{table.name}: a row id occurs twice"
    assert max(ids, default=-1) < known.next_row_id
    assert known.rows >= len(ids), f"{table.name}: {known.rows} rows recorded, {len(ids)} there"
    actual = statistics.of_table(table, data)
    assert all(_covers(bounds, actual[i]) for i, bounds in known.columns.items()), (
        f"{table.name}: {known} {actual}"
    )


def _covers(known: ColumnStats, actual: ColumnStats) -> bool:
    """Bounds may be wider than today's rows, since DuckDB prunes old versions by them too; never narrower."""
    if actual.low is not None and (known.low is None or known.low > actual.low or known.high < actual.high):
        return False
    return bool(known.nulls) >= bool(actual.nulls) and bool(known.has_nan) >= bool(actual.has_nan)
