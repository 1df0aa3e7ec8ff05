"""What a database holds, read without Spark, and whether its catalogue tells the truth about it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.catalog import files, inlined, snapshots, stats
from millstream.catalog.records import ColumnStats
from millstream.storage import segment, statistics
from tests import duck

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.catalog.records import DataFile, Snapshot, TableInfo
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
    for table in lake.catalog.tables().values():
        _check_files(lake, table)
        _check_statistics(lake, table)


def _check_files(lake: Lake, table: TableInfo) -> None:
    with lake.catalog.read() as connection:
        by_file = stats.of_files(connection, table, lake.catalog.current.id)
    for file in live_files(lake, table.name):
        path = lake.folder(table) / file.path
        assert path.stat().st_size == file.bytes, f"{table.name}: {file.path} has another size"
        assert pq.read_metadata(path).num_rows == file.rows, f"{table.name}: {file.path} has another row count"
        data, _ = segment.read(lake.folder(table), table, file)
        assert by_file.get(file.id, {}) == statistics.of_table(table, data), f"{table.name}: {file.path}"


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
